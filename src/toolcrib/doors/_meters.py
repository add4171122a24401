"""What is counted while serving, and how Prometheus reads it: a small writer of its text form.

Counters for people who watch; not a record (the journal is) and not a limit. Labels come from closed sets
only: what a client sends never becomes one.
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import toolcrib
from toolcrib.app import Crib
from toolcrib.doors._crew import Crew
from toolcrib.doors._events import Event, EventKind, Events
from toolcrib.errors import ToolcribError
from toolcrib.model import FORMATS, ApprovalState, Severity

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the buckets that durations are put into."""
ROUTES: Final = ("mcp", "v1", "events", "health", "metrics", "openapi", "console")
_DOORS: Final = frozenset({"http", "mcp", "stdio", "console"})
_ELSE: Final = "other"


def route_class(path: str) -> str:
    """Which part of the house a path belongs to. Attack: paths without end, each a series of its own."""
    if path == "/mcp":
        return "mcp"
    if path.startswith("/v1/"):
        return "events" if path == "/v1/events" else "v1"
    return _PATHS.get(path, "console")


_PATHS: Final = {
    "/healthz": "health",
    "/readyz": "health",
    "/metrics": "metrics",
    "/openapi.json": "openapi",
    "/mcp/": "mcp",
}


class Histogram:
    """How many durations fell below each bound. Added to under the owner's lock."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


class Meters:
    """One for all doors of a host."""

    def __init__(
        self,
        crib: Crib,
        crew: Crew,
        events: Events,
        *,
        connections: Callable[[], int] = lambda: 0,
    ) -> None:
        self._crib = crib
        self._crew = crew
        self._events = events
        self.connections = connections
        self._started = time.time()
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str, str], int] = {}
        self._durations: dict[str, Histogram] = {}
        self._requests: dict[tuple[str, int], int] = {}
        self._reloads: Counter[str] = Counter()
        self._severities: tuple[str, Mapping[Severity, int]] = ("", {})
        events.hook(self._told)
        crew.counted = self.call

    # -- counting -------------------------------------------------------------------------------------------

    def request(self, path: str, status: int) -> None:
        """A response has begun."""
        key = (route_class(path), status)
        with self._lock:
            self._requests[key] = self._requests.get(key, 0) + 1

    def call(self, door: str, key: str, kind: str | None, duration_ms: float) -> None:
        """A call is over. In the thread that ran it."""
        door = door if door in _DOORS else _ELSE
        format = key.partition(":")[0]
        place = (door, format if format in FORMATS else "", kind or "ok")
        with self._lock:
            self._calls[place] = self._calls.get(place, 0) + 1
            found = self._durations.get(door)
            if found is None:
                found = self._durations[door] = Histogram()
            found.add(duration_ms / 1000)

    def _told(self, event: Event) -> None:
        """In the thread where it happens."""
        if event.kind is EventKind.RELOADED:
            with self._lock:
                self._reloads["ok"] += 1
        elif event.kind is EventKind.RELOAD_FAILED:
            with self._lock:
                self._reloads["failed"] += 1

    # -- telling --------------------------------------------------------------------------------------------

    def text(self) -> bytes:
        """Everything, as Prometheus reads it. Asks the store, so it is best called in a thread."""
        return "".join(f"{line}\n" for line in self._lines()).encode("utf-8")

    def _lines(self) -> Iterator[str]:
        with self._lock:
            calls, reloads = dict(self._calls), dict(self._reloads)
            durations = {door: (list(each.counts), each.total) for door, each in self._durations.items()}
        requests = dict(self._requests)
        python = ".".join(map(str, sys.version_info[:3]))
        yield from _family(
            "toolcrib_build_info", "gauge", "Always 1; the labels say what is running.",
            [({"version": toolcrib.__version__, "python": python}, 1)],
        )  # fmt: skip
        yield from _family(
            "toolcrib_start_time_seconds", "gauge", "When serving began, since the epoch.",
            [({}, round(self._started, 3))],
        )  # fmt: skip
        yield from _family(
            "toolcrib_calls_total", "counter", "Calls that ended, by door, format and outcome.",
            [
                ({"door": door, "format": format, "outcome": outcome}, count)
                for (door, format, outcome), count in sorted(calls.items())
            ],
        )  # fmt: skip
        yield from _histogram("toolcrib_call_duration_seconds", "How long calls took, by door.", durations)
        yield from _family(
            "toolcrib_calls_in_flight", "gauge", "Calls taken that are not over.",
            [({}, self._crew.under_way)],
        )  # fmt: skip
        yield from _family(
            "toolcrib_approvals_waiting", "gauge", "Calls that wait for a person.",
            [({}, count) for count in self._waiting()],
        )  # fmt: skip
        yield from _family(
            "toolcrib_reloads_total", "counter", "Replacements of the catalog, and failed ones.",
            [({"outcome": outcome}, reloads.get(outcome, 0)) for outcome in ("ok", "failed")],
        )  # fmt: skip
        yield from _family(
            "toolcrib_http_requests_total", "counter", "HTTP responses, by route class and status.",
            [({"route": route, "status": str(status)}, n) for (route, status), n in sorted(requests.items())],
        )  # fmt: skip
        for name, status, what in (
            ("toolcrib_tokens_refused_total", 401, "Requests without a token that counts."),
            ("toolcrib_rate_limited_total", 429, "Requests refused because of their rate."),
        ):
            count = sum(n for (_, each), n in requests.items() if each == status)
            yield from _family(name, "counter", what, [({}, count)])
        yield from _family(
            "toolcrib_open_streams", "gauge", "Streams of events that somebody listens to.",
            [({}, self._events.listening)],
        )  # fmt: skip
        yield from _family(
            "toolcrib_open_connections", "gauge", "Connections that are open.", [({}, self.connections())]
        )
        yield from _family(
            "toolcrib_journal_trouble", "gauge", "1 while the journal cannot be written.",
            [({}, int(self._crib.hands.audit.trouble is not None))],
        )  # fmt: skip
        yield from _family(
            "toolcrib_catalog_tools", "gauge", "Tools in the catalog.",
            [({}, self._crib.catalog.counted)],
        )  # fmt: skip
        severities = self._counted_severities()
        yield from _family(
            "toolcrib_problems", "gauge", "Problems of the declarations, by severity.",
            [({"severity": severity.value}, severities.get(severity, 0)) for severity in Severity],
        )  # fmt: skip

    def _waiting(self) -> list[int]:
        try:
            approvals = self._crib.approvals()
        except ToolcribError:  # the store cannot be read: the others are told all the same
            return []
        return [sum(approval.state is ApprovalState.WAITING for approval in approvals)]

    def _counted_severities(self) -> Mapping[Severity, int]:
        """Counted once per catalog: there may be very many."""
        version = self._crib.loaded.version
        if self._severities[0] != version:
            self._severities = (version, self._crib.severities)
        return self._severities[1]


def _family(
    name: str, kind: str, what: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{_labels(labels)} {value}"


def _histogram(name: str, what: str, found: Mapping[str, tuple[list[int], float]]) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} histogram"
    for door, (counts, total) in sorted(found.items()):
        below = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), counts, strict=True):
            below += count
            yield f"{name}_bucket{_labels({'door': door, 'le': bound})} {below}"
        yield f"{name}_sum{_labels({'door': door})} {round(total, 6)}"
        yield f"{name}_count{_labels({'door': door})} {below}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
