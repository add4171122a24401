"""What MCP servers list: asked all at once, remembered on disk, and asked again when they say so.

It knows what the sources name (``catalog/sources.py``) and has ``runtimes/mcp.py`` talk to the servers; what
their tools are as records is ``formats/mcp.py``. It starts nothing by itself and decides nothing.

Each server is looked at by a thread of its own. An opening takes what was listed before and waits only for
servers of which nothing is known, and for these only a short time. Whatever comes later is written down, and
the catalog is made again from it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import formats, jsontext
from toolcrib.catalog import files, sources
from toolcrib.errors import ToolcribError
from toolcrib.jsontext import JsonObject
from toolcrib.model import End, Ending
from toolcrib.sandbox import Cancel
from toolcrib.store import private

if TYPE_CHECKING:
    from toolcrib.runtimes._mcp_server import State as ServerState
    from toolcrib.runtimes.mcp import McpTools

LIST_S: Final = 20.0
"""The most for starting a server and asking it for its tools; its definition may give it less."""
FIRST_S: Final = 5.0
"""How long an opening waits for lists that it knows nothing of, after the last one that came."""
GUARDED_MAX: Final = 5000
NOTES_MAX: Final = 3000
"""How many notes about servers are kept in a state folder, the newest; each server has up to three."""
_SERVERS_AT_ONCE: Final = 64
_LISTED_BYTES_MAX: Final = 64 << 20
_FAILURE_BYTES_MAX: Final = 1 << 16
_REFRESH_S: Final = 1.0
_REST_S: Final = 60.0
"""How long a server that gave no list is left alone, and one that gave a list is believed."""
_CLOSE_S: Final = 2.0
_STEP_S: Final = 0.05
_WORDS_LINES: Final = 3
_LONGER: Final = "`toolcrib list --fresh` waits for it longer; `toolcrib doctor` shows how it stands"

Told: TypeAlias = tuple[bytes | None, str | None, str | None]
"""What a server listed, and, where it could not be asked, why and what to do about it."""


class _Failure(Struct, frozen=True, kw_only=True):
    """Why a server gave no list when it was last asked."""

    why: str
    hint: str | None = None
    late: bool = False
    """It let us wait, so nobody waits for it a second time."""


class _Look:
    """One server that is being asked for its tools."""

    def __init__(self, digest: str, text: str, path: str) -> None:
        self.digest = digest
        self.text = text
        self.path = path
        self.is_awaited = False
        """Somebody takes the outcome; otherwise it is told to the catalog."""
        self.is_missed = False
        """The catalog was made without it, and says so."""
        self.began = time.monotonic()
        self.over_at = 0.0
        self.outcome: bytes | Ending | None = None

    @property
    def is_late(self) -> bool:
        return (self.over_at or time.monotonic()) - self.began >= FIRST_S


class ServerLists:
    """What MCP servers list: asked all at once, remembered on disk, and asked again when they say so."""

    def __init__(
        self,
        state: str | None,
        runtime: Callable[[], McpTools],
        reload: Callable[[], None],
        only: str | None = None,
    ) -> None:
        """``reload`` makes the catalog again. ``only``: the one server that is wanted; no other is asked."""
        self._state = state
        self._runtime = runtime
        self._reload = reload
        self._only = only
        self._lock = threading.Lock()
        self._over = threading.Condition(self._lock)
        """Told whenever a look is over."""
        self._at_once = threading.Semaphore(_SERVERS_AT_ONCE)
        self._known: dict[str, tuple[str, str]] = {}
        self._found: sources.Listing | None = None
        self._looks: dict[str, _Look] = {}
        """Those under way, by the digest of the definition."""
        self._arrived: dict[str, bytes | Ending] = {}
        """What came when nobody waited for it any more, for the next catalog."""
        self._unseen: set[str] = set()
        """Those of which something came that the catalog does not show yet."""
        self._newest: dict[str, float] = {}
        """When the last look began of those that are over."""
        self._noting = threading.Lock()
        """Held while what a look gave is written down."""
        self._renewed: set[str] = set()
        self._refresher: threading.Thread | None = None
        self._has_news = False
        self._doubted: set[str] = set()
        self._threads: list[threading.Thread] = []
        """Those that may not be over yet."""
        self._stop = threading.Event()
        self._asking = Cancel()
        """Stops whatever is being asked."""

    def defined(self, digest: str) -> str | None:
        """A server by the digest of its definition."""
        found = self._known.get(digest)
        return found[0] if found is not None else None

    # -- asking ---------------------------------------------------------------------------------------------

    def ask(self, candidates: Sequence[sources.Candidate]) -> list[Told]:
        """Each in its own permit, each start recorded. A server that is slow or dead costs its own time, and
        the opening no more than a short wait, once."""
        if self._state is None:
            return [(None, "there is no state folder to record its start in", None)] * len(candidates)
        answers: list[Told | _Look] = []
        for_long: list[_Look] = []
        for_short: list[_Look] = []
        for candidate in candidates:
            at_hand = self._at_hand(candidate)
            if at_hand is not None:
                answers.append(at_hand)
                continue
            look = self._look_at(candidate.server, candidate.defined, candidate.path, awaited=True)
            answers.append(look)
            failure = self._failure(candidate.server)
            is_known = self._noted("listed", candidate.server) > 0 if failure is None else failure.late
            if candidate.server in self._renewed or self._only is not None:
                for_long.append(look)
            # Attack: a server that never answers holds up every opening. One that was seen before is not
            # waited for, and neither is one that let the last opening wait.
            elif not is_known:
                for_short.append(look)
        self._renewed -= {candidate.server for candidate in candidates}
        try:
            self._wait(for_long, for_short)
        except BaseException:  # an interrupt: nobody takes the answers, so nobody need give them
            with self._lock:
                self._asking.set()
                if not self._stop.is_set():
                    self._asking = Cancel()
            raise
        return [self._taken(answer) if isinstance(answer, _Look) else answer for answer in answers]

    def _at_hand(self, candidate: sources.Candidate) -> Told | None:
        """An answer for which nobody need be asked now."""
        digest = candidate.server
        with self._lock:
            arrived = self._arrived.pop(digest, None)
        if arrived is not None:
            return self._told(digest, arrived)
        if not self._is_wanted(candidate.defined):
            return self._remembered(digest), _not_asked(), None
        if threading.current_thread() is self._refresher:
            # The catalog is made again because of another server: this one is being asked, or rests.
            return self._meanwhile(digest)
        is_current = self._noted("changed", digest) <= self._noted("listed", digest)
        if (
            is_current
            and digest not in self._renewed
            and self._is_recent("listed", digest)
            and self._failure(digest) is None
        ):
            remembered = self._remembered(digest)
            return None if remembered is None else (remembered, None, None)
        return None

    def _is_wanted(self, text: str) -> bool:
        return self._only is None or formats.server_of(text).name == self._only

    def _look_at(self, digest: str, text: str, path: str, *, awaited: bool = False) -> _Look:
        """The look at a server that is under way, or a new one."""
        runtime = self._runtime()
        with self._lock:
            look = self._looks.get(digest)
            if look is not None:
                look.is_awaited = look.is_awaited or awaited
                return look
            look = self._looks[digest] = _Look(digest, text, path)
            look.is_awaited = awaited
            is_asked = self._started("mcp-list", self._ask_one, look, runtime, self._asking) is not None
        if not is_asked:
            self._finish(look, Ending(end=End.UNAVAILABLE, reason="there are too many threads to ask it"))
        return look

    def _started(self, name: str, work: Callable[..., None], *given: object) -> threading.Thread | None:
        """A thread whose very end is waited for when we close. The lock is held."""
        thread = threading.Thread(target=work, args=given, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads for this user
            return None
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        return thread

    def _ask_one(self, look: _Look, runtime: McpTools, cancel: Cancel) -> None:
        outcome: bytes | Ending = Ending(end=End.CANCELLED)
        try:
            mcp = import_module("toolcrib.formats.mcp")  # by name: most hosts know no server
            with self._at_once:
                server = mcp.Server.read(look.text)
                stated = server.definition.get("timeout")
                limit_s = min(stated, LIST_S) if stated else LIST_S
                listed = runtime.listed(mcp.server_record(server, look.path), limit_s, cancel)
            if isinstance(listed, Ending):
                outcome = replace(listed, reason=_about_it(listed.reason, server.name))
            else:
                outcome = jsontext.compact({"tools": listed})
        except Exception as error:  # noqa: BLE001 - one catch-all per thread boundary, no other
            outcome = Ending(
                end=End.UNAVAILABLE, reason=f"it could not be asked for its tools ({type(error).__name__})"
            )
        finally:
            self._finish(look, outcome)

    def recall(self, candidates: Sequence[sources.Candidate]) -> list[Told]:
        """The lists that servers gave last. None is started."""
        answers: list[Told] = []
        for candidate in candidates:
            listed = self._remembered(candidate.server)
            why = None if listed is not None else "it was never asked for its tools"
            answers.append((listed, why, "`toolcrib list` asks it" if why else None))
        return answers

    def _finish(self, look: _Look, outcome: bytes | Ending) -> None:
        with self._over:
            look.outcome, look.over_at = outcome, time.monotonic()
            del self._looks[look.digest]
            if not _is_cancelled(outcome):
                self._newest[look.digest] = look.began
            self._over.notify_all()
            if look.is_awaited or self._stop.is_set():
                return
            self._unseen.add(look.digest)  # until it is known whether that is news
        self._arrive(look, outcome)

    def _wait(self, for_long: Sequence[_Look], for_short: Sequence[_Look] = ()) -> None:
        """Until all have answered; for some of them as long as it takes, for the others only while answers
        come: the slowest healthy one is waited for, and no other for long."""
        began = time.monotonic()
        with self._over:
            while True:
                left = [look for look in (*for_long, *for_short) if look.outcome is None]
                until = began + LIST_S + 1.0
                if not any(look in left for look in for_long):
                    last = max((look.over_at for look in for_short), default=began)
                    until = min(until, max(began, last) + FIRST_S)
                left_s = until - time.monotonic()
                if not left or left_s <= 0 or self._stop.is_set():
                    return
                self._over.wait(left_s)

    def _taken(self, look: _Look) -> Told:
        """What the look at a server gave, or what there is without it."""
        with self._lock:
            outcome = look.outcome
            look.is_awaited = False
        if outcome is None:
            return self._meanwhile(look.digest)
        if not _is_cancelled(outcome) and not self._write_down(look, outcome):
            return self._meanwhile(look.digest)  # while others were waited for, it said something newer
        return self._told(look.digest, outcome)

    def _told(self, digest: str, outcome: bytes | Ending) -> Told:
        if isinstance(outcome, Ending):
            # The last list it gave stays until there is another: a look that failed must cost nothing.
            return self._remembered(digest), outcome.reason or outcome.end.value, outcome.hint
        return outcome, None, None

    def _meanwhile(self, digest: str) -> Told:
        """What is told of a server before it has answered."""
        remembered, failure = self._remembered(digest), self._failure(digest)
        if failure is None and remembered is not None:
            return remembered, None, None
        with self._lock:
            look = self._looks.get(digest)
            if failure is None:
                waited_s = time.monotonic() - look.began if look is not None else FIRST_S
                why = f"it has not answered within {waited_s:.0f} s; its tools come when it does"
                failure = _Failure(why=why, hint=_LONGER, late=True)
            if look is not None:
                look.is_missed = True
                # Noted anew, so that others do not ask at the same time; before it answers, so that what it
                # says stays.
                self._note_failure(digest, failure)
        return remembered, failure.why, failure.hint

    # -- what came late -------------------------------------------------------------------------------------

    def _arrive(self, look: _Look, outcome: bytes | Ending) -> None:
        """Nobody waited for it: the catalog is made again, if it differs from what that was made from."""
        digest = look.digest
        if _is_cancelled(outcome):
            self._see({digest})
            return
        before = self._failure(digest)
        if isinstance(outcome, Ending):
            is_news = before is None or before.why != (outcome.reason or outcome.end.value)
        else:
            is_news = before is not None or self._remembered(digest) != outcome
        with self._lock:
            is_news = is_news or look.is_missed or digest in self._arrived
        if is_news:
            self._note("changed", digest)
        is_newest = self._write_down(look, outcome)
        if is_news and is_newest:
            with self._lock:
                self._arrived[digest] = outcome
                self._has_news = True
                self._wake()
        else:
            self._see({digest})

    def _see(self, digests: Collection[str]) -> None:
        """The catalog shows all there is of these."""
        with self._over:
            self._unseen.difference_update(digests)
            self._over.notify_all()

    def server_changed(self, digest: str) -> None:
        """A server says that its tools are others now: it is asked again meanwhile, and believed if they are.

        Attack: a server that says so all the time. One thread has it asked, and pauses each time.
        """
        with self._lock:
            self._doubted.add(digest)
            self._wake()

    def _wake(self) -> None:
        """Have somebody look at what is doubted or new. The lock is held."""
        if self._refresher is None and not self._stop.is_set():
            self._refresher = self._started("mcp-refresh", self._refresh)  # None: there is a next time

    def _refresh(self) -> None:
        try:
            while self._refreshed():
                self._stop.wait(_REFRESH_S)
        except BaseException:
            with self._lock:
                self._refresher = None  # the next change is heard all the same
            raise

    def _refreshed(self) -> bool:
        """Have doubted servers asked, and the catalog made again where there are news. False: all is done."""
        with self._lock:
            # One that is being asked may have answered before it changed: it is asked again afterwards.
            doubted = {digest for digest in self._doubted if digest not in self._looks}
            self._doubted -= doubted
            has_news, self._has_news = self._has_news, False
            shown = {**self._arrived}
            if self._stop.is_set() or not (doubted or self._doubted or has_news):
                self._refresher = None
                return False
        with suppress(ToolcribError):
            for digest in doubted & self._known.keys():
                self._look_at(digest, *self._known[digest])
            if has_news:
                self._reload()
        if has_news:
            with self._lock:
                for digest, outcome in shown.items():
                    if self._arrived.get(digest) is outcome:  # of a server that no source names any more
                        del self._arrived[digest]
            self._see(shown)
        return True

    # -- how servers stand ----------------------------------------------------------------------------------

    def states(self, servers: Mapping[str, tuple[str, str]]) -> tuple[ServerState, ...]:
        """How servers stand. Only those that were not asked for anything yet are asked; those that are being
        asked are waited for."""
        if not servers:
            return ()
        named: dict[str, tuple[str, str, str]] = {}
        for digest, (text, path) in servers.items():
            # The first of a name counts.
            named.setdefault(formats.server_of(text).key, (digest, text, path))
        known = {state.key for state in self._runtime().states()}
        looks = {
            key: self._look_at(*where)
            for key, where in named.items()
            if key not in known or where[0] in self._looks
        }
        self._wait([*looks.values()])
        found = {state.key: state for state in self._runtime().states()}
        for key, look in looks.items():
            if key not in found and isinstance(look.outcome, Ending):
                found[key] = _state_of(look.text, look.outcome)
        return tuple(found[key] for key in named if key in found)

    def _named_by(self, key: str) -> tuple[str, str]:
        """The server whose tool a key names, and the digest of its definition; empty where there is none."""
        format, _, rest = key.partition(":")
        server, slash, _ = rest.partition("/")
        if format != "mcp" or not slash or self._found is None:
            return "", ""
        for digest, (text, _) in self._found.servers.items():
            if formats.server_of(text).name == server:
                return server, digest
        return "", ""

    def arrives(self, name: str, timeout_s: float, cancel: Cancel) -> bool:
        """Wait for the server of a tool that is not there, where it is being asked; no other one is waited
        for. True: the tool may be there now."""
        _, digest = self._named_by(name)
        if not digest:
            return False
        until = time.monotonic() + min(timeout_s, LIST_S)
        with self._over:
            if digest not in self._looks and digest not in self._unseen:
                return False
            while digest in self._looks or digest in self._unseen:
                left_s = until - time.monotonic()
                if left_s <= 0 or cancel.is_set or self._stop.is_set():
                    break
                self._over.wait(min(left_s, _STEP_S))
        return True

    def absence(self, name: str, keys: Collection[str]) -> tuple[str, str | None] | None:
        """Why there is no tool of this name, where it is the key of a server that gave no list, and what to
        do about it. ``keys`` are those of the tools there are."""
        server, digest = self._named_by(name)
        prefix = f"mcp:{server}/"
        if not digest or any(key.startswith(prefix) for key in keys):
            return None
        failure = self._failure(digest)
        if self._only not in (None, server):
            failure = _Failure(why=_not_asked(), hint="open the crib without only=, or with this key")
        if failure is None:
            return None
        hint = failure.hint or ""
        said = next((state.stderr for state in self._runtime().states() if state.key == prefix), "")
        if said and "its last words" not in hint:
            words = "; ".join(said.splitlines()[-_WORDS_LINES:])
            hint = "; ".join(filter(None, (f"its last words: {words}", hint)))
        return f"the MCP server {server!r} has not listed its tools: {failure.why}", hint or None

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

    @property
    def listing(self) -> sources.Listing | None:
        """What the sources hold, before any of it is read: no server that is asked by then may write it."""
        return self._found

    def changed_at(self, digest: str) -> tuple[int, int, int, int]:
        """When a server last said that its tools are others now; other programs of ours see it too."""
        return (0, self._noted("changed", digest), 0, 0)

    def renew(self, digest: str) -> None:
        """Somebody wants it asked again, and waits for it."""
        with self._lock:
            self._arrived.pop(digest, None)
        self._renewed.add(digest)
        self._note("changed", digest)
        self._note("failed", digest, there=False)

    def rests(self, digest: str) -> bool:
        """Whether a server gave no list just now: it is not asked at every start while it is down."""
        if self._only is not None:
            return not self._is_wanted(self._known[digest][0])
        return self._is_recent("failed", digest)

    # -- notes ----------------------------------------------------------------------------------------------

    def _write_down(self, look: _Look, outcome: bytes | Ending) -> bool:
        """False: a later look is over by now, and what that one gave stays."""
        with self._noting:
            with self._lock:
                if self._newest.get(look.digest, look.began) > look.began:
                    return False
            if isinstance(outcome, Ending):
                why = outcome.reason or outcome.end.value
                self._note_failure(look.digest, _Failure(why=why, hint=outcome.hint, late=look.is_late))
            else:
                self._note("listed", look.digest, outcome)
                self._note("failed", look.digest, there=False)
            return True

    def _note_failure(self, digest: str, failure: _Failure) -> None:
        told: JsonObject = {"why": failure.why, "hint": failure.hint, "late": failure.late}
        self._note("failed", digest, jsontext.compact(told))

    def _failure(self, digest: str) -> _Failure | None:
        """Why a server gave no list when it was last asked, by us or by another program of ours."""
        if self._state is None or not self._noted("failed", digest):
            return None
        content, _ = files.read(self._mark("failed", digest), _FAILURE_BYTES_MAX)
        told: Any = jsontext.read(content).value if content else None
        if not isinstance(told, dict) or not isinstance(told.get("why"), str):
            return _Failure(why="it gave no list when it was last asked")
        hint = told.get("hint")
        is_late = told.get("late") is True
        return _Failure(why=told["why"], hint=hint if isinstance(hint, str) else None, late=is_late)

    def _is_recent(self, what: str, digest: str) -> bool:
        age_s = time.time() - self._noted(what, digest) / 1e9
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
            folder = os.path.dirname(path)
            private.make_folders(folder)
            is_first = not os.path.exists(path)
            # Put in place whole: another program, or another thread, may read it at this moment.
            new = f"{path}.{os.getpid()}-{threading.get_native_id()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
                file.write(text)
            os.replace(new, path)
            if is_first:
                _prune(folder)

    def _mark(self, what: str, digest: str) -> str:
        assert self._state is not None
        return os.path.join(self._state, "servers", f"{digest.rpartition(':')[2]}.{what}")

    def close(self) -> None:
        with self._over:
            self._stop.set()
            self._asking.set()
            self._over.notify_all()
            threads = self._threads
        deadline = time.monotonic() + _CLOSE_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _not_asked() -> str:
    why: str = import_module("toolcrib.formats.mcp").NOT_ASKED
    return why


def _is_cancelled(outcome: bytes | Ending) -> bool:
    return isinstance(outcome, Ending) and outcome.end is End.CANCELLED


def _prune(folder: str) -> None:
    """Keep the newest notes: every other definition of a server leaves some behind. Whoever still needs an
    older one asks that server again."""
    with os.scandir(folder) as entries:
        found = [entry.path for entry in entries]
    if len(found) > NOTES_MAX:
        found.sort(key=lambda path: os.stat(path).st_mtime_ns, reverse=True)
        for path in found[NOTES_MAX:]:
            os.unlink(path)


def _about_it(reason: str, name: str) -> str:
    """A reason without the server's name, which stands before it wherever it is told."""
    rest = reason.removeprefix(f"the MCP server {name!r}")
    if rest == reason:
        return reason
    return rest.removeprefix(": ") if rest.startswith(": ") else f"it{rest}"


def _state_of(text: str, outcome: Ending) -> ServerState:
    """How a server stands that nobody could even try to reach."""
    server = formats.server_of(text)
    definition = server.definition
    shown_url = import_module("toolcrib.journal.redaction").shown_url
    argv = [definition.get("command"), *(definition.get("args") or ())]
    state: ServerState = import_module("toolcrib.runtimes._mcp_server").State(
        name=server.name,
        key=server.key,
        where=shown_url(definition["url"]) if "url" in definition else " ".join(map(str, argv)),
        alive=False,
        why=outcome.reason or outcome.end.value,
        hint=outcome.hint or "",
    )
    return state
