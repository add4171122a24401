"""What the house has on record, as JSON documents: approvals, explanations of decisions, the audit journal.

The same for every door. Reads the journal's folder, which a running host may be writing; decides nothing.
"""

from __future__ import annotations

import codecs
import math
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from toolcrib.doors._documents import effect_source, plain
from toolcrib.gate import Explanation
from toolcrib.journal import reading
from toolcrib.journal.chain import Anchor
from toolcrib.journal.reading import Entry, Verdict, time_text
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import Allow, Approval, Ask, Deny

if TYPE_CHECKING:
    from toolcrib.journal import usage
    from toolcrib.journal.index import Index, Load, Mark, WantedRecords


def approval_item(one: Approval) -> JsonObject:
    """One approval, for programs."""
    return {
        "id": one.id,
        "key": one.key,
        "arguments": one.arguments,
        "caller": one.caller,
        "asked_at": time_text(one.asked_at),
        "because": one.because,
        "state": one.state.value,
        "question": one.question,
        "call_id": one.call_id,
        "until": time_text(one.until),
        "standing": one.standing,
        "edited": one.edited,
        "answer": None
        if one.answered_at is None
        else {
            "by": one.answered_by,
            "at": time_text(one.answered_at),
            "because": one.answer_because or None,
        },
        "used_by": one.used_by or None,
    }


def explanation_document(explained: Explanation) -> JsonObject:
    """The document of ``policy explain --json``."""
    decision = explained.decision
    return {
        "key": explained.tool.key,
        "caller": explained.caller,
        "effect": explained.tool.effect.value,
        "effect_from": effect_source(explained.tool),
        "decision": decision_word(decision),
        "rule": decision.rule or None,
        "because": decision.because,
        "permit": None if explained.permit is None else plain(explained.permit),
        "message": _said(decision),
        "hint": decision.hint if isinstance(decision, Deny) else None,
        "budgets": [
            {
                "rule": left.place,
                "because": left.because,
                "calls_left": left.calls_left,
                "cost_left": left.cost_left,
                "within_s": left.within_s,
                "again_s": left.again_s,
            }
            for left in explained.budgets
        ],
        "approvals": [
            {
                "id": one.id,
                "state": one.state.value,
                "until": one.until,
                "any_arguments": one.standing,
                "edited": one.edited is not None,
                "answered_by": one.answered_by or None,
            }
            for one in explained.approvals
        ],
        "depends": [
            {"rule": rule.place, "decision": rule.answer.value, "because": rule.because}
            for rule in explained.depending
        ],
        "notes": [*explained.notes, *(decision.notes if isinstance(decision, Allow) else ())],
    }


def without_places(document: JsonObject) -> JsonObject:
    """An explanation for those who do not look after the host.

    Attack: a caller learns where the host's files lie, and from what is protected which programs tools beyond
    its reach run.
    """
    permit = document["permit"]
    return {
        **document,
        "rule": base_name(document["rule"]),
        "permit": None if permit is None else {**permit, "protected": [], "forbidden": [], "hidden": []},
        "budgets": [{**each, "rule": base_name(each["rule"])} for each in document["budgets"]],
        "depends": [{**each, "rule": base_name(each["rule"])} for each in document["depends"]],
    }


def base_name(place: JsonValue) -> JsonValue:
    """A rule's place without its folder."""
    return place.rpartition("/")[2] if isinstance(place, str) else place


def decision_word(decision: Allow | Ask | Deny) -> str:
    return {Allow: "allow", Ask: "ask", Deny: "deny"}[type(decision)]


def _said(decision: Allow | Ask | Deny) -> str | None:
    if isinstance(decision, Deny):
        return decision.message
    return decision.question if isinstance(decision, Ask) else None


# -- the journal --------------------------------------------------------------------------------------------

_PAGE_LOOKS_MAX: Final = 8
"""How often a page is looked for further back where most of what is there must not be shown."""


def journal_of(state: str) -> str:
    """The folder of a host's journal."""
    return os.path.join(state, "journal")


def lost_in(folder: str, since: float, progress: reading.Progress | None = None) -> set[tuple[str, int]]:
    """Where the begins of interrupted calls stand, without the index."""
    found = reading.interrupted(folder, since, progress=progress)
    return {(entry.segment, entry.number) for entry in found}


def lost_of(folder: str, shown: Sequence[Entry]) -> set[tuple[str, int]]:
    """The same for some records alone, in much less time."""
    begun = {entry.call: entry.ts for entry in shown if entry.what == "begin"}
    for entry in shown:
        if entry.what == "end":
            begun.pop(entry.call, None)
    found = reading.interrupted(folder, min(begun.values(), default=0.0), begun.keys())
    return {(entry.segment, entry.number) for entry in found}


def entry_document(entry: Entry, lost: set[tuple[str, int]]) -> JsonObject:
    """One record, marked where it is the begin of an interrupted call."""
    if (entry.segment, entry.number) in lost:
        return reading.as_json(entry, interrupted=True)
    return reading.as_json(entry)


def page_of(
    folder: str,
    wanted: WantedRecords,
    *,
    before: Mark | None,
    count: int,
    sees: Callable[[object], bool] | None = None,
) -> JsonObject:
    """A page of records, the newest first, and the mark to go on from."""
    with _index(folder) as index:
        found: list[Entry] = []
        mark = before
        for _ in range(_PAGE_LOOKS_MAX):
            rows = index.records(wanted, count - len(found), before=mark, without=reading.OWN)
            found += (entry for entry, _ in rows if sees is None or sees(entry.body.get("key")))
            mark = rows[-1][1] if rows else None
            if mark is None or len(found) >= count:
                break
        if mark is not None and not index.records(wanted, 1, before=mark, without=reading.OWN):
            mark = None
        begins = [entry.ts for entry in found if entry.what == "begin"]
        lost = index.interrupted(min(begins)) if begins else set()
    return {
        "records": [entry_document(entry, lost) for entry in found],
        "next": None if mark is None else str(mark),
    }


def call_document(
    folder: str, call_id: str, sees: Callable[[object], bool] | None = None
) -> JsonObject | None:
    """All records of one call, by its whole id; None where there are none that may be seen."""
    with _index(folder) as index:
        entries = [entry for entry in index.of_call(call_id) if entry.call == call_id]
        if not entries or not may_see(sees, entries):
            return None
        status = status_of(index, entries)
    return {
        "call": call_id,
        "status": status,
        "records": [reading.as_json(entry) for entry in entries],
    }


def may_see(sees: Callable[[object], bool] | None, entries: Sequence[Entry]) -> bool:
    """Whether the records of one call may be shown, by the keys it began under."""
    begins = (entry for entry in entries if entry.what == "begin")
    return sees is None or all(sees(entry.body.get("key")) for entry in begins)


def status_of(index: Index, entries: Sequence[Entry]) -> str:
    """How a call stands: ``ok``, an error kind, ``running`` or ``interrupted``."""
    ends = [entry for entry in entries if entry.what == "end"]
    if ends:
        return "ok" if ends[-1].body.get("ok") else str(ends[-1].body.get("kind"))
    begun = {(entry.segment, entry.number) for entry in entries}
    return "interrupted" if begun & index.interrupted(entries[0].ts) else "running"


def verdict_of(state: str, anchor: Anchor | None = None, progress: reading.Progress | None = None) -> Verdict:
    """Whether the journal is whole, by the anchor's key where there is an anchor."""
    key = anchor.key if anchor is not None else _sealing().public_key(state)
    check = _sealing().checker(key or bytes(32))
    verdict = reading.verify(journal_of(state), key, check, anchor, progress)
    if key is None and _sealing().public_key(state) is not None:  # a host made the key meanwhile, and signed
        return verdict_of(state, anchor, progress)
    return verdict


def verdict_document(verdict: Verdict) -> JsonObject:
    bad = verdict.flaws[0] if verdict.flaws else None
    return {
        "ok": verdict.ok,
        "records": verdict.records,
        "first_bad": None if bad is None else {"segment": bad.segment, "record": bad.number, "why": bad.why},
        "unsigned": verdict.unsigned,
        "torn": list(verdict.torn),
        "former": list(verdict.former),
    }


def usage_document(found: usage.Usage, interrupted: int) -> JsonObject:
    return {
        "events": found.events,
        "calls": found.calls,
        "failed": found.failed,
        "median_ms": found.median_ms,
        "kinds": found.kinds,
        "cost": found.cost,
        "interrupted": interrupted,
        "tools": [
            {
                "key": use.key,
                "calls": use.calls,
                "failed": use.failed,
                "median_ms": use.median_ms,
                "slowest_ms": use.slowest_ms,
                "latency": use.latency,
                "too_slow": use.too_slow,
            }
            for use in found.tools
        ],
    }


def stats_document(
    folder: str,
    *,
    now: float,
    window_s: int,
    buckets: int,
    key: str | None = None,
    sees: Callable[[object], bool] | None = None,
) -> JsonObject:
    """How tools were used in the last day, and the calls of a window of time in equal parts, for charts: at
    most so many, each of whole minutes or hours, the last of which holds now."""
    grain = 60 if window_s <= 3600 * buckets else 3600
    width_s = -(-math.ceil(window_s / buckets) // grain) * grain
    count = -(-window_s // width_s)
    with _index(folder) as index:
        events = [event for event in index.events() if sees is None or sees(event.key)]
        loads = index.load(now, width_s, count, key=key, sees=sees)
        interrupted = len(index.interrupted(now - _usage().WINDOW_S)) if sees is None else 0
    return {
        **usage_document(_usage().usage(events, now), interrupted),
        "window_s": width_s * count,
        "bucket_s": width_s,
        "buckets": [_bucket(load) for load in loads],
    }


def _bucket(load: Load) -> JsonObject:
    return {
        "start": time_text(load.start),
        "calls": load.calls,
        "failed": load.failed,
        "p50_ms": load.p50_ms,
        "p95_ms": load.p95_ms,
        "p99_ms": load.p99_ms,
    }


def result_part(call_id: str, page: bytes, size: int, offset: int) -> JsonObject:
    """A page of a kept result: whole characters, so that the next page goes on where this one ends."""
    text, used = codecs.utf_8_decode(page, "replace", False)  # half a character stays for later
    if not used:
        text, used = page.decode("utf-8", "replace"), len(page)
    end = offset + used
    following = end if end < size else None
    return {"call": call_id, "bytes": size, "offset": offset, "text": text, "next_offset": following}


# Loaded when something is asked of them: SQLite and signatures are slow to import, and most of what these
# documents are about needs neither.


def _index(folder: str) -> Index:
    index: Index = import_module("toolcrib.journal.index").Index(folder)
    return index


def _sealing() -> Any:
    return import_module("toolcrib.journal.sealing")


def _usage() -> Any:
    return import_module("toolcrib.journal.usage")
