"""An index over the journal, for questions that would otherwise read all of it. Never on the way of a call.

``index.sqlite`` beside the segments: which records belong to a call, which calls there were, how many ended
when and how long they took. It is brought up to date when somebody asks, a segment at a time, so that whoever
is stopped in the middle leaves the most of it to the next, and thrown away whenever it does not fit; the
segments are the truth.
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec import Struct

from toolcrib.errors import StoreError
from toolcrib.journal import chain, reading
from toolcrib.journal.chain import Head
from toolcrib.journal.reading import Entry, SegmentFile
from toolcrib.journal.segments import OPEN, SEALED
from toolcrib.journal.usage import EVENTS_MAX, Event
from toolcrib.jsontext import JsonObject

PAGE_MAX: Final = 500
SCANNED_MAX: Final = 200_000
"""How many calls one question with conditions looks at; the next page goes on from there."""
GRAINS_S: Final = (60, 3600)
"""Of what is counted: charts of hours and days add up minutes, longer ones hours."""
_STEPS_PER_DOUBLING: Final = 8
"""How finely durations are told apart when they are counted: within five percent."""

_VERSION: Final = 5
_TABLES: Final = (
    "CREATE TABLE segment (name TEXT PRIMARY KEY, offset INTEGER, number INTEGER, link BLOB, "
    "host TEXT) STRICT",
    "CREATE TABLE record (segment TEXT, number INTEGER, offset INTEGER, ts REAL, what TEXT, call TEXT, "
    "key TEXT, ok INTEGER, ms REAL, kind TEXT, latency TEXT, cost REAL, currency TEXT, "
    "PRIMARY KEY (segment, number)) STRICT",
    "CREATE INDEX by_call ON record (call)",
    "CREATE INDEX by_end ON record (what, ts)",
    "CREATE INDEX by_time ON record (ts)",
    "CREATE TABLE call (call TEXT PRIMARY KEY, segment TEXT, begun REAL, tool TEXT, key TEXT, caller TEXT, "
    "door TEXT, ended REAL, ok INTEGER, kind TEXT, ms REAL, layers TEXT, number INTEGER, host TEXT) "
    "STRICT, WITHOUT ROWID",
    "CREATE INDEX by_begin ON call (begun, call)",
    "CREATE INDEX unended ON call (begun) WHERE ended IS NULL",
    "CREATE TABLE load (segment TEXT, grain INTEGER, at INTEGER, key TEXT, step INTEGER, ok INTEGER, "
    "calls INTEGER, PRIMARY KEY (grain, at, key, step, ok, segment)) STRICT, WITHOUT ROWID",
)


class CallRow(Struct, frozen=True, kw_only=True):
    """One call, as its begin and its end tell it. Without an end it is running, or its host is gone."""

    call: str
    begun: float
    tool: str
    key: str | None
    caller: str
    door: str
    ended: float | None
    ok: bool | None
    kind: str | None
    ms: float | None
    layers: tuple[str, ...]


class Wanted(Struct, frozen=True, kw_only=True):
    """Which calls are asked for. Texts are looked for anywhere in what they are compared with."""

    tool: str = ""
    caller: str = ""
    outcome: str = ""
    """``ok``, ``failed`` (any error), ``open`` (no end) or an error's kind."""
    since: float = 0.0
    before: tuple[float, str] | None = None
    """Where the page before ended: only older calls."""


class Page(Struct, frozen=True):
    """Calls, the newest first, and where the next page begins, if there is one."""

    calls: tuple[CallRow, ...]
    next: tuple[float, str] | None


class Load(Struct, frozen=True):
    """The calls that ended in one stretch of time. Times are None where there were none."""

    start: float
    calls: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class WantedRecords(Struct, frozen=True, kw_only=True):
    """Which records are asked for. None: whatever they say of it."""

    what: str | None = None
    key: str | None = None
    """A key; ``*`` stands for anything."""
    outcome: str | None = None
    """``ok``, ``failed`` or an error kind: ends alone have one."""
    since: float | None = None
    until: float | None = None


class Mark(Struct, frozen=True):
    """Where a page ended: the next one goes on before it."""

    ts: float
    segment: str
    number: int

    def __str__(self) -> str:
        return f"{self.ts!r}-{self.number}-{self.segment}"

    @staticmethod
    def read(text: str) -> Mark | None:
        """What ``str`` wrote; None: it is not."""
        found = _MARK.fullmatch(text)
        return None if found is None else Mark(float(found[1]), found[3], int(found[2]))


MARK: Final = r"^([0-9]{1,12}\.[0-9]{1,9})-([0-9]{1,12})-([0-9A-Za-z_.-]{1,100})$"
_MARK: Final = re.compile(MARK[1:-1])

_making: Final = threading.Lock()


class Index:
    """The index of one journal, up to date when it was opened."""

    def __init__(
        self, folder: str, *, wait_s: float = 10.0, progress: reading.Progress | None = None
    ) -> None:
        """Raises StoreError where another program, or another thread, is still making it after so long."""
        self._folder = folder
        self._wait_s = wait_s
        self._progress = progress
        self._seen: dict[str, int] = {}
        """How far we read each segment. Others may know more by now; what they saw says nothing about hosts
        that we did not look for."""
        self._living: set[str | None] = set()
        """Hosts that held a segment when we read it."""
        self._unread: StoreError | None = None
        path = self._path = os.path.join(folder, "index.sqlite")
        if not os.path.isdir(folder):
            reading.segment_files(folder)  # something else in its place is not an empty journal
            self._connection = sqlite3.connect(":memory:", isolation_level=None)
            self._prepare()
            return
        try:
            self._connection = self._opened(path)
            self._prepare()
            self._update()
        except sqlite3.Error as error:
            self._rebuild(error)

    def _rebuild(self, error: sqlite3.Error) -> None:
        """Damaged, foreign or not writable: made anew, in memory where it cannot be kept."""
        path = self._path
        with suppress(AttributeError):
            self._connection.close()
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            # Not damaged: whoever throws it away now makes two do the work of one.
            raise StoreError(f"{path}: the journal's index is being made", "try again in a moment") from None
        for ending in ("", "-wal", "-shm", "-journal"):
            with suppress(OSError):
                os.unlink(path + ending)
        try:
            self._connection = self._opened(path)
            self._prepare()
            self._update()
        except sqlite3.Error:
            self._connection = sqlite3.connect(":memory:", isolation_level=None)
            self._prepare()
            self._update()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *ended: object) -> None:
        self._connection.close()

    def _asked(self, question: str, given: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """The rows of an answer. Damage may lie where only a question looks: then all is made anew."""
        try:
            return self._connection.execute(question, given).fetchall()
        except sqlite3.Error as error:
            # Attack: a question that SQLite does not take, so that each one has the whole journal read.
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR:
                raise
            self._rebuild(error)
            return self._connection.execute(question, given).fetchall()

    # -- questions ------------------------------------------------------------------------------------------

    def of_call(self, call: str) -> list[Entry]:
        """Every record of a call, in order; ``call`` may be the beginning of its id."""
        rows = self._asked(
            "SELECT segment, number, offset FROM record WHERE call >= ? AND call < ? "
            "ORDER BY segment, number",
            (call, call + "\U0010ffff"),
        )
        files = {segment.name: segment for segment in reading.segment_files(self._folder)}
        return [
            entry
            for segment, number, offset in rows
            if segment in files and (entry := _entry(files[segment], number, offset)) is not None
        ]

    def interrupted(self, since: float) -> set[tuple[str, int]]:
        """Where the begins of calls stand that began since a time and never ended, because their host was
        gone when this index was opened: as ``reading.interrupted`` finds them. StoreError where a segment,
        which may tell of their ends, could not be read."""
        rows = self._asked(
            "SELECT segment, number, host FROM call WHERE ended IS NULL AND begun >= ?", (since,)
        )
        if self._unread is not None:
            raise self._unread
        return {
            (segment, number)
            for segment, number, host in rows
            if number <= self._seen.get(segment, -1) and host not in self._living
        }

    def events(self) -> list[Event]:
        """The last calls that ended, oldest first."""
        rows = self._asked(
            "SELECT ts, key, ok, ms, kind, latency, cost, currency FROM record WHERE what = 'end' "
            "ORDER BY ts DESC, segment DESC, number DESC LIMIT ?",
            (EVENTS_MAX,),
        )
        return [
            Event(ts, key or "(unknown)", bool(ok), ms or 0.0, kind, latency, cost, currency)
            for ts, key, ok, ms, kind, latency, cost, currency in reversed(rows)
        ]

    def calls(self, wanted: Wanted, limit: int) -> Page:
        """A page of calls, the newest first."""
        limit = max(1, min(limit, PAGE_MAX))
        begun, call = wanted.before or (math.inf, "")
        tool, caller, outcome = wanted.tool.lower(), wanted.caller.lower(), wanted.outcome
        scanned = SCANNED_MAX if tool or caller or outcome else limit + 1
        rows = self._asked(
            "SELECT call, begun, tool, key, caller, door, ended, ok, kind, ms, layers FROM "
            "(SELECT * FROM call WHERE (begun, call) < (?, ?) AND begun >= ? "
            "ORDER BY begun DESC, call DESC LIMIT ?) "
            "WHERE (? = '' OR instr(lower(coalesce(key, tool)), ?)) AND (? = '' OR instr(lower(caller), ?)) "
            "AND CASE ? WHEN '' THEN 1 WHEN 'ok' THEN ok IS 1 WHEN 'failed' THEN ok IS 0 "
            "WHEN 'open' THEN ended IS NULL ELSE kind IS ? END ORDER BY begun DESC, call DESC LIMIT ?",
            (begun, call, wanted.since, scanned, tool, tool, caller, caller, outcome, outcome, limit + 1),
        )
        found = tuple(_call_row(*row) for row in rows[:limit])
        if len(rows) > limit:
            return Page(found, (found[-1].begun, found[-1].call))
        last = self._asked(
            "SELECT begun, call FROM call WHERE (begun, call) < (?, ?) AND begun >= ? "
            "ORDER BY begun DESC, call DESC LIMIT 1 OFFSET ?",
            (begun, call, wanted.since, SCANNED_MAX - 1),
        )
        return Page(found, last[0] if last else None)

    def load(
        self,
        now: float,
        width_s: int,
        count: int,
        *,
        key: str | None = None,
        sees: Callable[[object], bool] | None = None,
    ) -> tuple[Load, ...]:
        """How many calls ended in each of ``count`` stretches, the last of which holds ``now``, how many of
        them failed, and how long they took. Stretches are made of whole minutes, or of whole hours. ``key``
        may hold ``*``; ``sees`` tells which keys are counted."""
        grain = max(each for each in GRAINS_S if each == GRAINS_S[0] or width_s % each == 0)
        width = max(1, width_s // grain)
        first = (math.floor(now / (width * grain)) + 1 - count) * width
        counted: list[Counter[int]] = [Counter() for _ in range(count)]
        failed = [0] * count
        given: dict[str, Any] = {
            "first": first,
            "after": first + width * count,
            "width": width,
            "grain": grain,
        }
        given["keys"] = None
        if key is not None or sees is not None:
            found = self._asked(
                "SELECT DISTINCT key FROM load WHERE grain = :grain AND at >= :first AND at < :after "
                "AND (:key IS NULL OR key GLOB :key)",
                {**given, "key": None if key is None else _glob(key)},
            )
            given["keys"] = json.dumps([each for (each,) in found if sees is None or sees(each)])
        for at, step, ok, calls in self._asked(
            "SELECT (at - :first) / :width, step, ok, sum(calls) FROM load "
            "WHERE grain = :grain AND at >= :first AND at < :after "
            "AND (:keys IS NULL OR key IN (SELECT value FROM json_each(:keys))) GROUP BY 1, 2, 3",
            given,
        ):
            counted[at][step] += calls
            failed[at] += 0 if ok else calls
        return tuple(
            Load(
                start=float((first + at * width) * grain),
                calls=steps.total(),
                failed=failed[at],
                p50_ms=_quantile(steps, 0.5),
                p95_ms=_quantile(steps, 0.95),
                p99_ms=_quantile(steps, 0.99),
            )
            for at, steps in enumerate(counted)
        )

    def records(
        self,
        wanted: WantedRecords,
        count: int,
        *,
        before: Mark | None = None,
        without: Collection[str] = (),
    ) -> list[tuple[Entry, Mark]]:
        """Records, the newest first, each with its mark; ``without`` names kinds that are left out."""
        rows = self._asked(
            "SELECT ts, segment, number, offset FROM record "
            "WHERE (:what IS NULL OR what = :what) "
            "AND what NOT IN (SELECT value FROM json_each(:without)) "
            "AND (:key IS NULL OR key GLOB :key) "
            "AND (:outcome IS NULL OR CASE :outcome WHEN 'ok' THEN ok WHEN 'failed' THEN NOT ok "
            "ELSE kind IS :outcome END) "
            "AND ts >= :since AND ts < :until AND ts <= :ts "
            "AND (ts, segment, number) < (:ts, :segment, :number) "
            "ORDER BY ts DESC, segment DESC, number DESC LIMIT :count",
            {
                "what": "end" if wanted.outcome is not None else wanted.what,
                "without": json.dumps(sorted(without)),
                "key": None if wanted.key is None else _glob(wanted.key),
                "outcome": wanted.outcome,
                "since": -1.0 if wanted.since is None else wanted.since,
                "until": _NEVER if wanted.until is None else wanted.until,
                "ts": _NEVER if before is None else before.ts,
                "segment": "" if before is None else before.segment,
                "number": 0 if before is None else before.number,
                "count": count,
            },
        )
        files = {segment.name: segment for segment in reading.segment_files(self._folder)}
        return [
            (entry, Mark(ts, segment, number))
            for ts, segment, number, offset in rows
            if segment in files and (entry := _entry(files[segment], number, offset)) is not None
        ]

    # -- keeping up -----------------------------------------------------------------------------------------

    def _opened(self, path: str) -> sqlite3.Connection:
        # Made by us, so that it is ours alone. Never opened where it is there: closing it would give up the
        # locks of every other thread that is writing it.
        with _making, suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if os.path.islink(path):
            # Attack: a link in its place, so that the index is written into another file.
            raise sqlite3.OperationalError("it is a link")
        return sqlite3.connect(path, timeout=self._wait_s, isolation_level=None)

    def _prepare(self) -> None:
        connection = self._connection
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == _VERSION:
            return
        if version != 0:
            raise sqlite3.DatabaseError("another version")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION:d}")
        connection.execute("COMMIT")

    def _update(self) -> None:
        self._seen, self._living, self._unread = {}, set(), None
        with self._step():
            known = {
                name: (offset, number)
                for name, offset, number in self._connection.execute(
                    "SELECT name, offset, number FROM segment"
                )
            }
            for name in known.keys() - {segment.name for segment in reading.segment_files(self._folder)}:
                self._forget(name)
        for segment, is_new in reading.all_files(self._folder, self._progress):
            offset, number = known.get(segment.name, (0, 0))
            if offset and segment.sealed and offset == reading.size_of(segment):
                self._seen[segment.name] = number  # nothing comes any more, and nobody holds it
                continue
            try:
                with self._step():
                    self._take_in(segment, is_new)
            except reading.Gone:
                pass
            except StoreError as error:  # `verify` tells what is wrong with it
                self._unread = self._unread or error

    @contextmanager
    def _step(self) -> Iterator[None]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _forget(self, segment: str) -> None:
        for statement in _FORGET:
            self._connection.execute(statement, (segment,))

    def _take_in(self, segment: SegmentFile, is_new: bool) -> None:
        """Take in what a segment has beyond what is known of it."""
        name = segment.name
        row = self._connection.execute(
            "SELECT offset, number, link, host FROM segment WHERE name = ?", (name,)
        ).fetchone()
        offset, after, host = (0, None, None) if row is None else (row[0], Head(name, row[1], row[2]), row[3])
        is_as_known = True
        try:
            data, live = reading.contents(segment, offset)
            scanned = chain.scan(name, data, after)
            is_as_known = after is None or scanned.flaw is None
        except reading.Shorter:
            is_as_known = False
        if not is_as_known:
            # What we know of it is no longer there: a write that failed was taken back, a power failure took
            # what was not on the disk, or an older state was put back. Read it anew.
            self._forget(name)
            offset, host = 0, None
            data, live = reading.contents(segment)
            scanned = chain.scan(name, data)
        if scanned.records:
            bodies = [
                (record, body) for record in scanned.records if (body := chain.body_of(record)) is not None
            ]
            self._connection.executemany(
                "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                _rows(name, offset, bodies),
            )
            host = self._take_in_calls(name, host, bodies)
            if not is_as_known:
                self._connection.execute(_ENDED_ELSEWHERE, (name,))
            self._connection.execute(
                "INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?)",
                (name, offset + scanned.end, scanned.head.number, scanned.head.link, host),
            )
        self._seen[name] = scanned.head.number
        if live or is_new:
            self._living.add(host)

    def _take_in_calls(
        self, segment: str, host: str | None, bodies: list[tuple[chain.Record, JsonObject]]
    ) -> str | None:
        """``host`` wrote what stands before; gives the one that wrote last."""
        begins, ends = [], []
        load: Counter[tuple[int, int, str, int, bool]] = Counter()
        for record, body in bodies:
            if body.get("what") == "open":
                host = json.dumps(body.get("host"), sort_keys=True)
            if not isinstance(call := body.get("call"), str):
                continue
            ts = _number(body.get("ts")) or 0.0
            key = _text(body.get("key"))
            if body.get("what") == "begin":
                told = (_text(body.get(name)) or "" for name in ("tool", "caller", "door"))
                begins.append((call, segment, record.number, host, ts, key, *told))
            elif body.get("what") == "end":
                ok, ms = body.get("ok") is True, _number(body.get("ms")) or 0.0
                layers = [each for each in body.get("layers") or () if isinstance(each, str)]
                ends.append((call, segment, ts, key, ok, _text(body.get("kind")), ms, "\n".join(layers), ts))
                for grain in GRAINS_S:
                    load[grain, math.floor(ts / grain), key or "", _step(ms), ok] += 1
        # A call may begin in one segment and end in another, which may be read first.
        self._connection.executemany(
            "INSERT INTO call (call, segment, number, host, begun, key, tool, caller, door) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (call) DO UPDATE SET segment = excluded.segment, number = excluded.number, "
            "host = excluded.host, begun = excluded.begun, key = coalesce(key, excluded.key), "
            "tool = excluded.tool, caller = excluded.caller, door = excluded.door",
            begins,
        )
        self._connection.executemany(
            "INSERT INTO call (call, segment, begun, key, ok, kind, ms, layers, ended, tool, caller, door) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', '') "
            "ON CONFLICT (call) DO UPDATE SET key = coalesce(excluded.key, key), ok = excluded.ok, "
            "kind = excluded.kind, ms = excluded.ms, layers = excluded.layers, ended = excluded.ended",
            ends,
        )
        self._connection.executemany(
            "INSERT INTO load VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET calls = calls + excluded.calls",
            [(segment, *place, calls) for place, calls in load.items()],
        )
        return host


_FORGET: Final = (
    "UPDATE call SET ended = NULL, ok = NULL, kind = NULL, ms = NULL, layers = NULL "
    "WHERE call IN (SELECT call FROM record WHERE segment = ? AND what = 'end')",
    "DELETE FROM call WHERE call IN (SELECT call FROM record WHERE segment = ?1) AND segment = ?1",
    "DELETE FROM record WHERE segment = ?",
    "DELETE FROM load WHERE segment = ?",
    "DELETE FROM segment WHERE name = ?",
)


_ENDED_ELSEWHERE: Final = (
    "UPDATE call SET (ended, ok, kind, ms) = (found.ts, found.ok, found.kind, found.ms) FROM record AS found "
    "WHERE found.call = call.call AND found.what = 'end' AND call.ended IS NULL "
    "AND call.call IN (SELECT call FROM record WHERE segment = ?1) AND call.segment = ?1"
)
"""Calls of a segment that was forgotten: their ends may stand in another one, which was not."""


def _rows(
    segment: str, offset: int, bodies: list[tuple[chain.Record, JsonObject]]
) -> Iterator[tuple[Any, ...]]:
    for record, body in bodies:
        if body.get("what") in reading.OWN:
            continue
        yield (
            segment,
            record.number,
            offset + record.offset,
            _number(body.get("ts")) or 0.0,
            _text(body.get("what")),
            _text(body.get("call")),
            _text(body.get("key")),
            body.get("ok") is True,
            _number(body.get("ms")),
            _text(body.get("kind")),
            _text(body.get("latency")),
            _number(body.get("cost")),
            _text(body.get("currency")),
        )


def _call_row(
    call: str, begun: float, tool: str, key: str | None, caller: str, door: str, ended: float | None,
    ok: int | None, kind: str | None, ms: float | None, layers: str | None,
) -> CallRow:  # fmt: skip
    return CallRow(
        call=call,
        begun=begun,
        tool=tool or key or "(unknown)",
        key=key,
        caller=caller,
        door=door,
        ended=ended,
        ok=None if ok is None else bool(ok),
        kind=kind,
        ms=ms,
        layers=tuple((layers or "").split("\n")) if layers else (),
    )


def _step(ms: float) -> int:
    """Durations are counted on a scale of equal ratios; below a hundredth of a millisecond all are one."""
    return round(math.log2(max(ms, 0.01)) * _STEPS_PER_DOUBLING)


def _quantile(steps: Counter[int], share: float) -> float | None:
    """The duration that this share of the calls did not exceed, as finely as they were counted."""
    wanted = math.ceil(steps.total() * share)
    for step in sorted(steps):
        wanted -= steps[step]
        if wanted <= 0:
            return float(2 ** (step / _STEPS_PER_DOUBLING))
    return None


def _entry(segment: SegmentFile, number: int, offset: int) -> Entry | None:
    """One record by its place, checked against its own head."""
    record = None
    for path in (segment.path, segment.path.removesuffix(OPEN) + SEALED):  # it may be closed meanwhile
        with suppress(OSError), open(path, "rb") as file:
            file.seek(offset)
            record = chain.alone(file.read(chain.HEAD_BYTES + chain.BODY_BYTES_MAX), offset)
            break
    body = chain.body_of(record) if record is not None and record.number == number else None
    return None if body is None else Entry(segment.name, number, body)


_NEVER: Final = 1e15


def _glob(pattern: str) -> str:
    """A pattern in which only ``*`` means anything, as SQLite spells it."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
