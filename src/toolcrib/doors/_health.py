"""How a server stands: alive, ready, and what the console's health page shows.

Looks, and changes nothing. What is told here names no secret: programs, folders and reasons.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from toolcrib.app import Crib
from toolcrib.catalog.catalog import Catalog
from toolcrib.doors._crew import Crew
from toolcrib.doors._events import Event, EventKind, Events
from toolcrib.errors import StoreError, ToolcribError
from toolcrib.jsontext import JsonObject
from toolcrib.model import Problem, Severity
from toolcrib.sandbox import probe

_FAILED: Final = frozenset(("mcp.server.unavailable", "source.link", "source.missing", "source.unreadable"))
"""Warnings that say that a source, or a part of it, could not be read at all."""
_RELOADS: Final = (EventKind.RELOADED, EventKind.RELOAD_FAILED)


class Health:
    """One for all doors of a host."""

    def __init__(self, crib: Crib, crew: Crew, events: Events) -> None:
        self._crib = crib
        self._crew = crew
        self._started = time.time()
        self._reload: JsonObject | None = None
        self._failed: JsonObject | None = None
        self._layers: JsonObject | None = None
        self._looked: tuple[Catalog, bool] | None = None
        self._probing = threading.Lock()
        self.is_draining = False
        events.hook(self._told)

    def _told(self, event: Event) -> None:
        if event.kind in _RELOADS:
            told = {"at": round(time.time(), 3), "ok": event.kind is EventKind.RELOADED, **event.data}
            self._reload = told
            self._failed = None if told["ok"] else told

    def alive(self) -> JsonObject:
        """For ``/healthz``: that it is asked and answered is all there is to it."""
        return {"status": "ok"}

    def ready(self) -> tuple[bool, JsonObject]:
        """For ``/readyz``: whether new work should be sent here, and why not. Cheap enough for the loop."""
        why: list[str] = []
        if self.is_draining:
            why.append("stopping: calls under way are being finished")
        trouble, state = self._crib.hands.audit.trouble, self._crib.config.state
        if trouble is not None:
            # Attack: whoever has no token learns where the host's files lie. The report says it to others.
            why.append(f"the journal cannot be written: {_without_folders(trouble.why, state)}")
        elif (unwritable := self._unwritable()) is not None:
            why.append(unwritable)
        if self._unread() is not None:
            why.append("the store cannot be read, so nothing runs")
        if self._has_no_source():
            # No path, and no text of a problem, which quotes the files.
            why.append("there is no tool: every source failed (`toolcrib check` says why)")
        return not why, {
            "status": "not ready" if why else "ok",
            "reasons": list(why),
            "tools": self._crib.catalog.counted,
        }

    def _has_no_source(self) -> bool:
        """Whether there are sources, and none has anything to serve because of what is wrong with them."""
        crib = self._crib
        catalog, looked = crib.catalog, self._looked
        if looked is None or looked[0] is not catalog:  # once for each: there may be thousands of problems
            has_none = bool(crib.config.sources) and not catalog.counted and not crib.skills
            is_wrong = has_none and any(_is_failure(problem) for problem in crib.problems)
            looked = self._looked = (catalog, is_wrong)
        return looked[1]

    def _unwritable(self) -> str | None:
        state = self._crib.config.state
        if state is None:
            return "there is no state folder to record calls in"
        # Before the first call there may be no folder yet, which is then made.
        while not os.path.isdir(state) and os.path.dirname(state) != state:
            state = os.path.dirname(state)
        return None if os.access(state, os.W_OK | os.X_OK) else "the state folder cannot be written"

    def _unread(self) -> StoreError | None:
        try:
            self._crib.disabled()
        except StoreError as error:
            return error
        return None

    def report(self) -> JsonObject:
        """Everything a person may want to know. Asks servers and the kernel: call it in a thread."""
        crib = self._crib
        (ready, why), unread = self.ready(), self._unread()
        return {
            "ready": ready,
            "reasons": why["reasons"],
            "started_at": round(self._started, 3),
            "draining": self.is_draining,
            "calls_in_flight": self._crew.under_way,
            "isolation": self._isolation(),
            "warnings": list(crib.warnings()),
            "catalog": {
                "version": crib.version,
                "tools": crib.catalog.counted,
                "skills": len(crib.skills),
                "problems": {severity.value: count for severity, count in crib.severities.items()},
            },
            "sources": [
                {
                    "path": source.path,
                    "format": source.format,
                    "there": os.path.exists(source.path) or "://" in source.path,
                }
                for source in crib.config.sources
                if not source.server
            ],
            "servers": self._servers(),
            "journal": self._journal(),
            "store": {
                "ok": unread is None,
                "why": "" if unread is None else unread.message,
                "hint": "" if unread is None else unread.hint or "",
            },
            "reload": self._reload,
            "reload_failed": self._failed,
        }

    def _isolation(self) -> JsonObject:
        """Tried once: it starts processes, and does not change while we run."""
        with self._probing:
            if self._layers is None:
                self._layers = {
                    "level": self._crib.hands.sandbox.level.value,
                    "layers": [
                        {
                            "name": layer.name,
                            "works": layer.works,
                            "means": layer.means,
                            "reason": layer.reason,
                            "fix": layer.fix,
                        }
                        for layer in probe.report(
                            probe.try_layers(base=self._crib.environment.temporary_folder)
                        )
                    ],
                }
            return self._layers

    def _servers(self) -> list[JsonObject]:
        try:
            states = self._crib.servers()
        except ToolcribError as error:
            return [{"name": "", "alive": False, "why": error.message}]
        return [
            {
                "name": state.name,
                "where": state.where,
                "alive": state.alive,
                "why": state.why,
                "hint": state.hint,
            }
            for state in states
        ]

    def _journal(self) -> JsonObject:
        trouble = self._crib.hands.audit.trouble
        return {
            "folder": self._crib.config.state,
            "ok": trouble is None,
            "why": trouble.why if trouble is not None else "",
            "hint": trouble.hint if trouble is not None else "",
        }


def _is_failure(problem: Problem) -> bool:
    return problem.severity is Severity.ERROR or problem.code in _FAILED


def _without_folders(text: str, state: str | None) -> str:
    """A text that names files without the folders that they lie in: ours, and those above it, which are at
    fault where ours cannot be made."""
    folder = state or ""
    while folder != (above := os.path.dirname(folder)):
        text = text.replace(os.path.join(folder, ""), "")
        folder = above
    return text
