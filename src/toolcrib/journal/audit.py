"""The record of every call: begun before anything starts, ended before the result goes out.

``begin`` is True only when the record is on the disk; ``end`` never raises, and what it could not write
it keeps and writes before anything else may begin, so nothing runs that is not recorded and nothing that
happened is lost. Records hold names of variables and arguments, never values; texts are redacted and
bounded.

What a record is on disk, and how it gets there, is ``segments.py``; this file only says what stands in
it.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.errors import Kind
from toolcrib.forks import IN_FORKS
from toolcrib.journal.days import DayFile, moment
from toolcrib.journal.redaction import Redaction, has_credential, without_credentials
from toolcrib.journal.segments import Bounds, Disk, Segments, Trouble
from toolcrib.jsontext import JsonObject
from toolcrib.model import CallFacts, Notes, Run, Tool, ToolCall, ToolResult

TEXT_CHARS_MAX: Final = 1000
"""Of one text in a record: an element of argv, an error's message, a name."""
ITEMS_MAX: Final = 64
"""Of one list in a record: elements of argv, names of arguments and variables, notes."""
RUNS_MAX: Final = 100
OWED_MAX: Final = 10_000
"""Ends that wait in memory for a journal that works again."""
_BODY_BYTES_MAX: Final = 256 << 10
_MILLION: Final = 1e6
_THOUSAND: Final = 1e3
_WORDS_MAX: Final = 512
_WORDS_CHARS_MAX: Final = 1000

_DECIDED: Final = (Kind.NEEDS_APPROVAL, Kind.DENIED)
"""Kinds whose details are the house's own words: the rule, the question. Others may hold arguments."""

RESULTS: Final = "results"
DAYS: Final = "audit"
"""Folders of the state folder beside the journal's: long results by call, and the day files."""


_Started: TypeAlias = tuple[tuple[str, ...], str, tuple[str, ...], str]
"""What is told of a start in words: argv, folder, names of variables, note."""


class _Words(NamedTuple):
    """The same as it is recorded."""

    argv: list[str]
    cwd: str
    env: list[str]
    note: str


_NO_WORDS: Final = _Words([], "", [], "")


class Audit:
    """The journal as the engine sees it. Touches no file before the first call."""

    def __init__(
        self,
        segments: Segments,
        *,
        redaction: Redaction | None = None,
        day_file: DayFile | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._segments = segments
        self._redaction = redaction or Redaction()
        self._day_file = day_file
        self._clock = clock
        self._words: dict[_Started, _Words] = {}
        """Of short starts that were recorded lately: the calls of a tool repeat theirs."""
        self.trouble: Trouble | None = None
        """Why the last record could not be written; None while the journal works."""
        self.renew()
        IN_FORKS.add(self)

    def renew(self) -> None:
        """Nothing has begun, and nothing is owed. In a fork, too: what its parent began or owes, the parent
        ends and writes, and no thread is left there that would let go of a lock."""
        self._owed: deque[bytes] = deque()
        self._owing = threading.Lock()
        self._begun: dict[str, None] = {}
        """The ids of calls without an end. One step puts one in or takes it out, so no lock is needed."""
        self._settled = threading.Condition()
        """Told whenever there is none, and somebody waits for that."""
        self._settling = 0

    @property
    def why_not(self) -> tuple[str, str]:
        """Why the last record could not be written, and what to do."""
        trouble = self.trouble or Trouble("it cannot be written")
        return trouble.why, trouble.hint

    # -- the way of a call ----------------------------------------------------------------------------------

    def begin(self, call: ToolCall, facts: CallFacts) -> bool:
        """Record that a call begins. True only when that is durable; else nothing may run."""
        return self.begin_all(((call, facts),))

    def begin_all(self, calls: Sequence[tuple[ToolCall, CallFacts]]) -> bool:
        """Record that calls begin, with one sync for all. True only when that is durable."""
        now = self._clock()
        bodies = [self._begin(call, facts, now) for call, facts in calls]
        try:
            if self._owed:
                self._pay()
            self._segments.append(bodies, durable=True)
        except Trouble as trouble:
            self.trouble = trouble
            return False
        self.trouble = None
        for call, _ in calls:
            self._begun[call.id] = None
        return True

    def _begin(self, call: ToolCall, facts: CallFacts, now: float) -> bytes:
        names, digest = _arguments(call)
        tool, caller, conversation = call.tool, call.caller, call.conversation
        # Attack: a credential as the name of an argument, a tool or a caller. One look at all of them: hardly
        # any record has one.
        if has_credential("\n".join((tool, caller, conversation, *(names or ())))):
            tool, caller, conversation = map(without_credentials, (tool, caller, conversation))
            names = None if names is None else [without_credentials(name) for name in names]
        body = {
            "what": "begin",
            "ts": _parts(now, _MILLION),
            "call": call.id,
            "tool": tool,
            "key": facts.key,
            "format": facts.format,
            "door": facts.door,
            "caller": caller,
            "conversation": conversation,
            "catalog": facts.catalog,
            "seen": facts.seen_digest,
            "runs": facts.runs_digest,
            "arguments": names,
            "arguments_digest": digest,
        }
        if call.dry_run:
            body["dry_run"] = True
        if call.approved_by:
            body["approved_by"] = call.approved_by
        if call.idempotency_key is not None:
            body["idempotency_key"] = without_credentials(call.idempotency_key)
        return _body(body)

    def end(self, call: ToolCall, result: ToolResult, tool: Tool | None = None) -> ToolResult:
        """Record how a call ended. Never raises; what could not be written stands in the result's notes."""
        return self.end_all(((call, result, tool),))[0]

    def end_all(self, calls: Sequence[tuple[ToolCall, ToolResult, Tool | None]]) -> list[ToolResult]:
        """As ``end``, for calls that are over together: one write for all."""
        bodies: list[bytes] = []
        lines: list[tuple[ToolResult, Tool, Run, _Words]] = []
        results: list[ToolResult] = []
        now = self._clock()
        for call, result, tool in calls:
            results.append(result)
            last: Run | None = None
            words = _NO_WORDS
            if runs := result.runs:
                last = runs[-1] if runs[-1].what == "call" else None
                if last is None or len(runs) > 1:
                    bodies += [self._run(call, result, run) for run in runs[-RUNS_MAX:] if run is not last]
                if last is not None:
                    words = self._in_words(last)
                    if tool is not None and tool.habits.day_line:  # what started nothing has no line
                        lines.append((result, tool, last, words))
            bodies.append(self._end(call, result, tool, now, last, words))
        try:
            if self._owed:
                self._pay()
            self._segments.append(bodies, durable=False)
        except Trouble as trouble:
            self.trouble = trouble
            with self._owing:
                kept = len(self._owed) + len(bodies) <= OWED_MAX
                if kept:
                    self._owed.extend(bodies)
            lost = (
                "it will be, if the journal works again while this host runs"
                if kept
                else "it is not recorded"
            )
            note = f"the end of this call could not be written to the audit journal; {lost}"
            results = [replace(result, notes=(*result.notes, note)) for result in results]
        for call, _, _ in calls:  # what began before a fork and ends in the child is not there
            self._begun.pop(call.id, None)
        if self._settling:
            self._tell_settled()
        if self._day_file is not None:
            for line in lines:
                self._day_line(self._day_file, *line)
        return results

    def _tell_settled(self) -> None:
        if self._settling and not self._begun:
            with self._settled:
                self._settled.notify_all()

    @property
    def redaction(self) -> Redaction:
        """What takes secrets out of texts."""
        return self._redaction

    def note(self, call_id: str, what: str, body: JsonObject) -> bool:
        """Record something that belongs to a call, or, without one, to the host: a schema query, an approval.

        True when it is in the kernel.
        """
        return self._noted(call_id, what, body, durable=False)

    def note_durably(self, call_id: str, what: str, body: JsonObject) -> str | None:
        """As ``note``, on the disk when it returns. Why it could not be written, or None."""
        return None if self._noted(call_id, what, body, durable=True) else self.why_not[0]

    def _noted(self, call_id: str, what: str, body: JsonObject, *, durable: bool) -> bool:
        told = {"what": what, "ts": self._clock(), "call": call_id}
        told.update((key, self._told(value)) for key, value in body.items())
        try:
            if durable and self._owed:
                self._pay()
            self._segments.append((_body(told),), durable=durable)
        except Trouble as trouble:
            self.trouble = trouble
            return False
        return True

    def settle(self, timeout_s: float) -> bool:
        """Wait until whatever began has its end, at most so long; whether it has."""
        with self._settled:
            self._settling += 1
            try:
                return self._settled.wait_for(lambda: not self._begun, timeout_s)
            finally:
                self._settling -= 1

    def close(self) -> None:
        """Write what is owed and let go of the journal."""
        if self._owed:
            try:
                self._pay()
            except Trouble as trouble:
                self.trouble = trouble
        self._segments.close()
        if self._day_file is not None:
            self._day_file.close()

    def _pay(self) -> None:
        """Write the ends that could not be written; they are on the disk before anything new begins."""
        with self._owing:
            while self._owed:
                some = tuple(self._owed)[:ITEMS_MAX]
                self._segments.append(some, durable=True)
                for _ in some:
                    self._owed.popleft()

    # -- bodies ---------------------------------------------------------------------------------------------

    def _end(
        self,
        call: ToolCall,
        result: ToolResult,
        tool: Tool | None,
        now: float,
        run: Run | None,
        words: _Words,
    ) -> bytes:
        spent, error = result.spent, result.error
        handed = run.env_names if run is not None else ()
        body: dict[str, Any] = {
            "what": "end",
            "ts": _parts(now, _MILLION),
            "call": call.id,
            "key": result.key or (tool.key if tool is not None else None),
            "ok": error is None,
            "ms": _ms(spent.duration_ms),
            "output_bytes": spent.output_bytes,
            "truncated": spent.truncated,
        }
        if error is not None:
            body["kind"] = error.kind.value
            body["error"] = self._shown(error.message, handed)
            if error.kind in _DECIDED and isinstance(error.details, dict):
                body["details"] = self._told(error.details)
        if result.rule:
            body["rule"] = self._shown(result.rule)
        if spent.attempts != 1:
            body["attempts"] = spent.attempts
        if result.isolation:
            body["layers"] = result.isolation
        if result.notes:
            body["notes"] = [self._shown(note, handed) for note in result.notes[:ITEMS_MAX]]
        if run is not None:
            body["run"] = _start(run, words)
        if tool is not None:
            if tool.notes.latency is not None:
                body["latency"] = tool.notes.latency
            if tool.notes.cost is not None:
                body.update(cost_of(tool.notes))
        return _body(body)

    def _run(self, call: ToolCall, result: ToolResult, run: Run) -> bytes:
        return _body(
            {
                "what": run.what,
                "ts": self._clock(),
                "call": call.id,
                "key": result.key,
                "run": _start(run, self._in_words(run)),
            }
        )

    def _in_words(self, run: Run) -> _Words:
        started = (run.argv, run.cwd, run.env_names, run.note)
        return self._words.get(started) or self._worded(started)

    def _worded(self, started: _Started) -> _Words:
        given, folder, handed, note = started
        argv = [self._shown(element, handed) for element in given[:ITEMS_MAX]]
        if len(given) > ITEMS_MAX:
            argv.append(f"… {len(given) - ITEMS_MAX} more")
        env = [_cut(name) for name in handed[: ITEMS_MAX * 4]]
        cwd, note = self._shown(folder, handed), self._shown(note, handed)
        words = _Words(argv, cwd, env, note)
        if len(cwd) + len(note) + sum(map(len, given)) + sum(map(len, handed)) <= _WORDS_CHARS_MAX:
            if len(self._words) >= _WORDS_MAX:
                self._words.clear()
            self._words[started] = words
        return words

    def _shown(self, text: str, handed: tuple[str, ...] = ()) -> str:
        """A text without secrets, and no longer than a record's may be."""
        # Redacted first: half of a secret that the cut goes through would not be found.
        return _cut(self._redaction(text, handed))

    def _told(self, value: Any) -> Any:
        """A value of a note: texts redacted and bounded, also inside lists and objects."""
        if isinstance(value, str):
            return self._shown(value)
        if isinstance(value, Mapping):
            return {_cut(str(key)): self._told(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self._told(item) for item in value[:ITEMS_MAX]]
        return value

    def _day_line(self, day_file: DayFile, result: ToolResult, tool: Tool, run: Run, words: _Words) -> None:
        """As the manifest format's original writes it."""
        ts = moment(self._clock())
        line = {
            "ts": ts,
            "tool": tool.name,
            "argv": words.argv,
            "cwd": words.cwd,
            "exit": -1 if run.exit_status is None else run.exit_status,
            "ms": round(_ms(run.duration_ms)),
            "stdoutBytes": run.stdout_bytes,
            "stderrBytes": run.stderr_bytes,
            "truncated": run.truncated or result.spent.truncated,
            "envKeys": [name for name in run.env_names if name in tool.needs.env],
        }
        day_file.write(ts.partition("T")[0], _body(line))


def open_audit(
    state: str,
    *,
    variables: Mapping[str, str] | None = None,
    patterns: Sequence[str] = (),
    retention_days: int = 90,
    day_file: bool = True,
    told: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.time,
    disk: Disk | None = None,
    bounds: Bounds | None = None,
) -> Audit:
    """The audit of a state folder. ``told`` hears what the host should know; without it, the host's log."""
    told = told or _log
    segments = Segments(
        os.path.join(state, "journal"),
        seal=Seals(state),
        clock=clock,
        disk=disk,
        bounds=replace(bounds or Bounds(), retention_days=retention_days),
        beside=(os.path.join(state, RESULTS), os.path.join(state, DAYS)),
        told=told,
    )
    return Audit(
        segments,
        redaction=Redaction(variables, patterns),
        day_file=DayFile(os.path.join(state, DAYS), told) if day_file else None,
        clock=clock,
    )


def _log(text: str) -> None:
    import_module("logging").getLogger("toolcrib.journal").warning("%s", text)


class Seals:
    """The journal's key, loaded when something is to be signed: the library behind it is slow to import."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._seal: Any = None

    def __call__(self) -> Any:
        if self._seal is None:
            self._seal = import_module("toolcrib.journal.sealing").Seal.of(self._state)
        return self._seal


def cost_of(notes: Notes) -> JsonObject:
    """What one call is estimated to cost, where the declaration says so in money."""
    cost = notes.cost
    if isinstance(cost, Mapping):
        amount, currency = cost.get("per_invocation"), cost.get("currency")
        if isinstance(amount, (int, float)) and not isinstance(amount, bool):
            return {"cost": amount, "currency": currency if isinstance(currency, str) else None}
    return {"cost_estimate": cost} if isinstance(cost, str) else {}


# -- small parts --------------------------------------------------------------------------------------------


def _parts(value: float, parts: float) -> float:
    """A number with no more digits than people ask for: records are read more often than clocks are right."""
    try:
        return math.floor(value * parts + 0.5) / parts
    except (OverflowError, ValueError):  # no number, or beyond all: an end is recorded nevertheless
        return value


def _ms(value: float) -> float:
    return _parts(value, _THOUSAND) if value > 0 else 0.0


def _start(run: Run, words: _Words) -> JsonObject:
    start: JsonObject = {
        "argv": words.argv,
        "cwd": words.cwd,
        "env": words.env,
        "exit": run.exit_status,
        "ms": _ms(run.duration_ms),
        "stdout_bytes": run.stdout_bytes,
        "stderr_bytes": run.stderr_bytes,
        "truncated": run.truncated,
    }
    if words.note:
        start["note"] = words.note
    return start


def _arguments(call: ToolCall) -> tuple[list[str] | None, str]:
    """Names, and a digest of the whole: enough to recognise arguments, not to read them."""
    arguments = call.arguments
    if arguments is None:
        return None, hashlib.sha256(call.raw.encode("utf-8", "surrogatepass")).hexdigest()
    names = [*arguments] if len(arguments) <= ITEMS_MAX else list(arguments)[:ITEMS_MAX]
    if type(arguments) is not dict:  # a list, say, which is refused after this
        names = [*map(str, names)]
    try:
        text = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer beyond 64 bits, a lone surrogate, a name that is no text
        names = [*map(str, names)]
        try:
            text = jsontext.canonical(_clean(arguments))
        except (RecursionError, ValueError):  # far too deep, or no number: the call is refused after this
            text = b"no JSON"
    return names, hashlib.sha256(text).hexdigest()


def _cut(text: str) -> str:
    if len(text) <= TEXT_CHARS_MAX:
        return text
    return f"{text[:TEXT_CHARS_MAX]}… ({len(text):,} characters)"


def _body(body: dict[str, Any]) -> bytes:
    try:
        # A copy: what orjson gives keeps the four kilobytes that it was written into, and to get these for
        # each of many records may take longer than all the rest.
        text = b"%b" % orjson.dumps(body)
    except TypeError:
        text = jsontext.compact(_clean(body))
    if len(text) <= _BODY_BYTES_MAX:
        return text
    # Attack: names of arguments so long that the record of who called what goes with them.
    kept = {name: value for name, value in body.items() if not isinstance(value, (list, dict))}
    return orjson.dumps(_clean({**kept, "too_long": len(text)}))


def _clean(value: Any) -> Any:
    """Texts that UTF-8 has no form for (bytes of a foreign encoding in argv) with these escaped, and null for
    floats that JSON has no form for."""
    if isinstance(value, str):
        return _cut(value.encode("utf-8", "backslashreplace").decode("utf-8"))
    if isinstance(value, Mapping):
        return {str(_clean(str(key))): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    return _clean(str(value))
