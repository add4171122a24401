"""What MCP servers list: asked all at once, remembered on disk, and asked again when they say so.

It knows what the sources name (``catalog/sources.py``) and has ``runtimes/mcp.py`` talk to the servers; what
their tools are as records is ``formats/mcp.py``. It starts nothing by itself and decides nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Final

from toolwright import formats, jsontext
from toolwright.catalog import files, sources
from toolwright.errors import ToolwrightError
from toolwright.jsontext import JsonValue
from toolwright.model import End, Ending
from toolwright.sandbox import Cancel

if TYPE_CHECKING:
    from toolwright.runtimes.mcp import McpTools
    from toolwright.runtimes.mcp import State as ServerState

LIST_S: Final = 20.0
"""The most for starting a server and asking it for its tools; its definition may give it less."""
GUARDED_MAX: Final = 5000
_SERVERS_AT_ONCE: Final = 64
_LISTED_BYTES_MAX: Final = 64 << 20
_REFRESH_S: Final = 1.0
_REST_S: Final = 60.0
"""How long a server that gave no list is left alone."""


class ServerLists:
    """What MCP servers list: asked all at once, remembered on disk, and asked again when they say so."""

    def __init__(
        self, state: str | None, runtime: Callable[[], McpTools], reload: Callable[[], None]
    ) -> None:
        self._state = state
        self._runtime = runtime
        self._reload = reload
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] = {}
        self._found: sources.Listing | None = None
        self._refreshing = False
        self._doubted: set[str] = set()
        self._stop = threading.Event()
        self._asking = Cancel()
        """Stops whatever is being asked."""

    def defined(self, digest: str) -> str | None:
        """A server by the digest of its definition."""
        found = self._known.get(digest)
        return found[0] if found is not None else None

    def ask(
        self, candidates: Sequence[sources.Candidate]
    ) -> list[tuple[bytes | None, str | None, str | None]]:
        """Each in its own permit, each start recorded. A server that is slow or dead costs its own time."""
        if self._state is None:
            return [(None, "there is no state folder to record its start in", None)] * len(candidates)
        listed = self._listed([(candidate.defined, candidate.path) for candidate in candidates])
        answers: list[tuple[bytes | None, str | None, str | None]] = []
        for candidate, found in zip(candidates, listed, strict=True):
            if isinstance(found, Ending):
                # One that was not let finish has not failed.
                self._note("failed", candidate.server, there=found.end is not End.CANCELLED)
                # The last list it gave stays until there is another: a look that failed must cost nothing.
                answers.append(
                    (self._remembered(candidate.server), found.reason or found.end.value, found.hint)
                )
            else:
                self._note("failed", candidate.server, there=False)
                content = jsontext.compact({"tools": found})
                self._note("listed", candidate.server, content)
                answers.append((content, None, None))
        return answers

    def recall(
        self, candidates: Sequence[sources.Candidate]
    ) -> list[tuple[bytes | None, str | None, str | None]]:
        """The lists that servers gave last. None is started."""
        answers: list[tuple[bytes | None, str | None, str | None]] = []
        for candidate in candidates:
            listed = self._remembered(candidate.server)
            why = None if listed is not None else "it was never asked for its tools"
            answers.append((listed, why, "`toolwright list` asks it" if why else None))
        return answers

    def _listed(self, servers: Sequence[tuple[str, str]]) -> list[list[JsonValue] | Ending]:
        # By name: most hosts know no server.
        pools, mcp = import_module("concurrent.futures"), import_module("toolwright.formats.mcp")

        def ask(named: tuple[str, str]) -> list[JsonValue] | Ending:
            server = mcp.Server.read(named[0])
            stated = server.definition.get("timeout")
            record = mcp.server_record(server, named[1])
            # Attack: a list of servers in which one, with all the time in the world, holds up every opening.
            return runtime.listed(record, min(stated, LIST_S) if stated else LIST_S, cancel)

        if not servers:
            return []
        runtime, cancel = self._runtime(), self._asking
        with pools.ThreadPoolExecutor(min(len(servers), _SERVERS_AT_ONCE), "mcp-list") as pool:
            try:
                return list(pool.map(ask, servers))
            except BaseException:  # an interrupt: leaving the pool waits for the others, so they are stopped
                cancel.set()
                with self._lock:
                    if not self._stop.is_set():
                        self._asking = Cancel()
                raise

    def states(self, servers: Mapping[str, tuple[str, str]]) -> tuple[ServerState, ...]:
        """How servers stand. Only those that were not asked for anything yet are asked."""
        if not servers:
            return ()
        named: dict[str, tuple[str, str]] = {}
        for text, path in servers.values():
            named.setdefault(formats.server_of(text).key, (text, path))  # the first of a name counts
        known = {state.key for state in self._runtime().states()}
        self._listed([where for key, where in named.items() if key not in known])
        found = {state.key: state for state in self._runtime().states()}
        return tuple(found[key] for key in named if key in found)

    # -- changes --------------------------------------------------------------------------------------------

    def know(self, found: sources.Listing) -> None:
        """From now on this is what digests stand for, besides what the old catalog still calls."""
        self._known = {**self._known, **found.servers}
        self._found = found

    def settle(self) -> Collection[str]:
        """The old catalog is gone: which definitions are left."""
        if self._found is not None:
            self._known = self._found.servers
        return self._known.keys()

    def declarations(self) -> Iterator[str]:
        """Where declarations lie, before they are read: no server that is asked by then may write them."""
        if self._found is not None:
            yield from (candidate.path for candidate in islice(self._found.candidates, GUARDED_MAX))

    def changed_at(self, digest: str) -> tuple[int, int, int, int]:
        """When a server last said that its tools are others now; other programs of ours see it too."""
        return (0, self._noted("changed", digest), 0, 0)

    def note_change(self, digest: str) -> None:
        self._note("changed", digest)
        self._note("failed", digest, there=False)

    def rests(self, digest: str) -> bool:
        """Whether a server gave no list just now: it is not asked at every start while it is down."""
        age_s = time.time() - self._noted("failed", digest) / 1e9
        return 0 <= age_s < _REST_S

    def _noted(self, what: str, digest: str) -> int:
        """When something was noted about a server, in nanoseconds; 0: never."""
        if self._state is None:
            return 0
        try:
            return os.stat(self._mark(what, digest)).st_mtime_ns
        except OSError:
            return 0

    def _remembered(self, digest: str) -> bytes | None:
        """What a server listed last."""
        if self._state is None:
            return None
        return files.read(self._mark("listed", digest), _LISTED_BYTES_MAX)[0]

    def _note(self, what: str, digest: str, text: bytes = b"", *, there: bool = True) -> None:
        if self._state is None:
            return
        path = self._mark(what, digest)
        with suppress(OSError):
            if not there:
                os.unlink(path)
                return
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(text)
            os.utime(path)

    def _mark(self, what: str, digest: str) -> str:
        assert self._state is not None
        return os.path.join(self._state, "servers", f"{digest.rpartition(':')[2]}.{what}")

    def server_changed(self, digest: str) -> None:
        """A server says that its tools are others now: it is asked again meanwhile, and believed if they are.

        Attack: a server that says so all the time. One thread asks, and pauses each time.
        """
        with self._lock:
            self._doubted.add(digest)
            if self._refreshing or self._stop.is_set():
                return
            self._refreshing = True
        try:
            threading.Thread(target=self._refresh, name="mcp-refresh", daemon=True).start()
        except RuntimeError:  # no more threads for this user; the doubt stays for the next time
            self._refreshing = False

    def _refresh(self) -> None:
        try:
            self._ask_again()
        except BaseException:
            with self._lock:
                self._refreshing = False  # the next change is heard all the same
            raise

    def _ask_again(self) -> None:
        while True:
            with self._lock:
                doubted, self._doubted = self._doubted, set()
                if not doubted or self._stop.is_set():
                    self._refreshing = False
                    return
            with suppress(ToolwrightError):
                changed = [digest for digest in doubted if self._is_another(digest)]
                for digest in changed:
                    self.note_change(digest)
                if changed:
                    self._reload()
            self._stop.wait(_REFRESH_S)

    def _is_another(self, digest: str) -> bool:
        """Whether a server lists something else than it did when its list was last read."""
        if digest not in self._known:
            return False
        (listed,) = self._listed([self._known[digest]])
        if isinstance(listed, Ending):
            return False
        return self._remembered(digest) != jsontext.compact({"tools": listed})

    def close(self) -> None:
        with self._lock:
            self._stop.set()
            self._asking.set()
