"""Reading changed files again while a crib is open: one thread that waits, looks and tells.

What a reload means is the crib's: the catalog is replaced whole, calls under way keep theirs, and what
has new errors replaces nothing. Here is only when. What runs is verified at each call, not here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final

from toolcrib.app import Crib
from toolcrib.catalog.loading import Differences, differences
from toolcrib.errors import ToolcribError
from toolcrib.model import Problem

DEBOUNCE_S: Final = 0.4
"""A storm of changes is waited for at most so long before it is looked at."""
_STEP_S: Final = 0.05
SAFETY_S: Final = 30.0
"""However quiet it is, the sources are compared so often: some file systems tell nothing."""
POLL_S: Final = 1.0
_SHARE_MAX: Final = 0.5
"""Attack: files that change without end, so that reading them again starves the calls. Looking takes at most
this part of the time of one thread."""
_REST_S_MAX: Final = 30.0
FOLDERS_MAX: Final = 50_000
"""More folders are compared from time to time instead of watched: the kernel's watches are for all."""
_REASON_CHARS_MAX: Final = 1000
_REASONS_MAX: Final = 3


class Watch:
    """Keeps the catalog of an open crib as its sources are."""

    def __init__(
        self,
        crib: Crib,
        *,
        reloaded: Callable[[Differences], object],
        failed: Callable[[str], object],
        needs_restart: Callable[[str], object] = lambda _path: None,
        poll_s: float | None = None,
    ) -> None:
        """Told in the thread where it happens: ``reloaded`` after each replacement of the catalog, whoever
        caused it; ``failed`` once for each reason why the last good one was kept; ``needs_restart`` the path
        of a configuration file that changed. ``poll_s``: compare so often instead of being told."""
        self._crib = crib
        self._reloaded = reloaded
        self._failed = failed
        self._needs_restart = needs_restart
        self._poll_s = poll_s
        self._seen = crib.loaded
        self._telling = threading.Lock()
        self._failing = ""
        self._after_s = 0.0
        self._stop = threading.Event()
        self._armed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        crib.watch(self._swapped)

    def start(self, *, after_s: float = 0.0) -> None:
        """Watch from now on, or from a little later; what changes meanwhile is noticed then."""
        self._after_s = after_s
        self._crib.unconfirmed.watch()
        self._thread.start()

    def wait_armed(self, timeout_s: float) -> bool:
        """Whether changes are noticed from here on, waited for at most so long."""
        return self._armed.wait(timeout_s)

    def stop(self) -> None:
        """End the thread. A reload under way is waited for a moment."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    # -- in the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._stop.wait(self._after_s)
        while not self._stop.is_set():
            # Attack: no descriptor is left when something is looked at, or first loaded, here: the thread
            # would end, and a server never notice another change.
            try:
                self._watch(self._crib.loaded.folders)
            except (OSError, ImportError):
                self._stop.wait(self._poll_s or POLL_S)

    def _watch(self, folders: frozenset[str]) -> None:
        """Until other folders are to be watched."""
        for paths in self._changes(folders):
            if self._stop.is_set():
                return
            self._note_files(paths)
            if self._matters(folders, paths):
                self._look()
            # A folder that came back, or was replaced by another one, is watched by nobody: the kernel
            # watches what stood under the name before.
            if self._crib.loaded.folders != folders or not folders.isdisjoint(paths):
                return

    def _changes(self, folders: frozenset[str]) -> Iterator[frozenset[str]]:
        """What changed, each time something did; an empty set: it is time to compare."""
        there = self._there(folders)
        if self._poll_s is None and there and len(there) <= FOLDERS_MAX:
            # Where there are no watches left, or a folder went away meanwhile, polling does.
            with suppress(ImportError, OSError, RuntimeError):
                # By name: it is in the extra `serve`, and only needed here.
                notify = import_module("watchfiles._rust_notify").RustNotify
                with notify(there, False, False, 0, False, True) as told:
                    yield frozenset()  # what changed before anybody was watching
                    if self._there(folders) != there:  # so did a folder, which is watched by nobody
                        self._stop.wait(_STEP_S)
                        return
                    self._armed.set()
                    while not self._stop.is_set():
                        found = told.watch(
                            int(DEBOUNCE_S * 1000), int(_STEP_S * 1000), int(SAFETY_S * 1000), self._stop
                        )
                        if found == "stop" or found == "signal":
                            return
                        yield frozenset() if found == "timeout" else frozenset(path for _, path in found)
                return
        self._armed.set()
        rest_s = self._poll_s or POLL_S
        while not self._stop.wait(rest_s):
            started = time.monotonic()
            yield frozenset()
            rest_s = self._rest_s(started, self._poll_s or POLL_S)

    def _there(self, folders: frozenset[str]) -> list[str]:
        """What can be watched now."""
        return sorted(folder for folder in (*folders, *self._outer()) if os.path.isdir(folder))

    def _outer(self) -> Iterator[str]:
        """Where a source that is not there may appear, or be replaced whole; and where the files lie that are
        only named to a person."""
        config = self._crib.config
        for source in config.sources:
            if not source.server and os.path.isabs(source.path):
                yield os.path.dirname(source.path)
        if config.file is not None:
            yield os.path.dirname(config.file)
        with suppress(ToolcribError):
            yield os.path.dirname(self._crib.gate.lock_path)
        yield self._crib.unconfirmed.records.folder

    def _note_files(self, paths: frozenset[str]) -> None:
        config = self._crib.config.file
        if config is not None and config in paths:
            self._needs_restart(config)

    def _matters(self, folders: frozenset[str], paths: frozenset[str]) -> bool:
        if not paths:
            return self._failing != "" or self._has_changed()
        if any(os.path.dirname(path) == self._crib.unconfirmed.records.folder for path in paths):
            return self._failing != "" or self._has_changed()  # a person confirmed something
        roots = {source.path for source in self._crib.config.sources}
        if any(os.path.dirname(path) in folders or path in folders or path in roots for path in paths):
            return True
        with suppress(ToolcribError):
            if self._crib.gate.lock_path in paths:
                self._reloaded(Differences())
        return False

    def _has_changed(self) -> bool:
        try:
            return self._crib.changed()
        except ToolcribError:
            return True

    def _look(self) -> None:
        started = time.monotonic()
        try:
            wrong = self._crib.reload(sound=True)
        except ToolcribError as error:
            self._tell_failed(error.message)
        except Exception as error:  # noqa: BLE001 - one catch-all per thread boundary, no other
            self._tell_failed(f"reading the sources broke: {type(error).__name__}")
        else:
            self._crib.unconfirmed.watch()
            if wrong:
                self._tell_failed(_reason(wrong))
            elif self._failing:
                self._failing = ""
                self._swapped()
        self._stop.wait(self._rest_s(started, 0.0))

    @staticmethod
    def _rest_s(started: float, least_s: float) -> float:
        spent_s = time.monotonic() - started
        return min(max(least_s, spent_s * (1 / _SHARE_MAX - 1)), _REST_S_MAX)

    def _tell_failed(self, reason: str) -> None:
        if reason != self._failing:
            self._failing = reason
            self._failed(reason[:_REASON_CHARS_MAX])

    def _swapped(self) -> None:
        """In whatever thread replaced the catalog."""
        with self._telling:
            before, self._seen = self._seen, self._crib.loaded
            self._failing = ""
            self._reloaded(differences(before, self._seen))


def _reason(wrong: Sequence[Problem]) -> str:
    told = "; ".join(f"{problem.path}: {problem.message}" for problem in wrong[:_REASONS_MAX])
    more = len(wrong) - _REASONS_MAX
    return f"{told} (and {more} more)" if more > 0 else told
