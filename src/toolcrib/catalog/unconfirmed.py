"""What a host leaves alone because it appeared where tools may write, until a person confirms it.

A snapshot of the folders that people and tools share is taken before the first tool that may write runs, and,
by a server, as soon as it serves. From then on a name that a format would load there, or that a tool's code
would import, and that was not there, is written down (``appeared.py``) and kept from being used. What other
hosts of the same state folder saw counts as well. While nothing that may write runs, only people can have
made a name that a tool's code imports, so that name becomes part of the snapshot. For folders that no host
looked through, the times of files are compared with those at which tools ran (``writes.py``).

Nothing here decides what a tool may write: ``places.py`` says where, and the policy who.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from shlex import quote
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from toolcrib import formats
from toolcrib.catalog import appeared, sources
from toolcrib.catalog.appeared import Appearance, How, OpenHost, OpenHosts, Records, Seen, is_confirmed
from toolcrib.catalog.loading import UNCONFIRMED
from toolcrib.catalog.places import (
    CODE,
    CONFIGURATION,
    DECLARATIONS,
    OF_SPACES,
    Code,
    Imports,
    Places,
)
from toolcrib.catalog.sources import Candidate, Listing, Source
from toolcrib.catalog.writes import SPANS_MAX, Folders, Past, Writes, appearance_of, joined, of_host
from toolcrib.errors import StoreError
from toolcrib.model import CallPython, Problem, Rules, Tool
from toolcrib.paths import SETTLED_NS, is_below, is_utf8, upwards
from toolcrib.store import private

_RAN_MAX: Final = 64
_TOLD_MAX: Final = 3
_KNOWN_MAX: Final = 4096
_OTHERS_S: Final = 1.0
"""So old may be what another host said about itself after it had begun."""
_NAMED_SO: Final = (*CONFIGURATION, *DECLARATIONS)
_RULES: Final = Rules()


class SharedCode(Struct, eq=False):
    """The code of a tool, as far as names that appear matter to it."""

    places: Places
    files: tuple[str, ...]
    imports: tuple[tuple[str, str, bytes | None], ...]
    """Folders that it imports from, each with the file of code or the text that does. Code in a folder below
    such a folder is a handler's, which imports from the folder above its own, too."""
    looked: object = None
    """What the folders looked like when nothing of it had appeared."""


class Unconfirmed:
    """What appeared, for one host. Any thread may ask."""

    def __init__(
        self,
        state: str | None,
        *,
        cwd: str,
        places: Callable[[], tuple[Listing, Places]],
        may_write: Callable[[str], str | None],
        imports: Imports,
        code: Callable[[Tool], Code],
    ) -> None:
        """``places``: what is loaded now. ``may_write``: the key of a tool that may write in a folder.
        ``code``: what a tool runs, with what else decides that."""
        self.records = Records(state)
        self.hosts = OpenHosts(state)
        self.past = Past(state)
        self._cwd = cwd
        self._places = places
        self._may_write = may_write
        self._imports = imports
        self._code_of = code
        self._lock = threading.RLock()
        self._seen: Seen | None = None
        self._of: Places | None = None
        self._running = 0
        self._stays = False
        """Something runs between calls as well: a server, or an interpreter that is kept."""
        self._held: dict[str, tuple[str, ...]] = {}
        """Documents that the kernel holds, by their folders."""
        self._stamps: dict[str, object] = {}
        """These folders as they were when nothing ran."""
        self._replaced: set[str] = set()
        """Documents that were replaced while something ran: the kernel held those that were there before."""
        self._ran: OrderedDict[str, float] = OrderedDict()
        """When tools that may write began to run last."""
        self._since_ns = 0
        """When the first of them began."""
        self._began_ns = 0
        """When the first of those that run now began."""
        self._ours = Writes()
        """Where ours could write."""
        self._spans: list[tuple[int, int]] = []
        """When they ran: those that ended."""
        self._ours_of: Places | None = None
        self._asked: set[str] = set()
        """Below what they asked to write."""
        self._after: dict[str, tuple[object, frozenset[str]]] = {}
        """Folders of code as they were when nothing ran any more."""
        self._looked: dict[str, tuple[object, frozenset[str]]] = {}
        self._judged: dict[str, object] = {}
        self._checked: tuple[Places | None, dict[str, Tool]] = (None, {})
        """The tools whose code was looked at since these places were found."""
        self._others: tuple[float, float, object, Sequence[OpenHost]] = (-1.0, -1.0, None, ())
        """When the folder of other hosts was looked at and they were read last, its stamp then, and they."""

    # -- before and after tools run -------------------------------------------------------------------------

    def watch(self) -> None:
        """From now on whatever appears in a folder that a loaded tool may write has to be confirmed."""
        with self._lock:
            _, places = self._places()
            if self._seen is not None and self._of is places:
                return
            self._look()
            if self.records.folder:
                private.folder(self.records.folder)  # what a person confirms is noticed there
                self._tell(places)

    def _tell(self, places: Places) -> None:
        assert self._seen is not None
        guarded = [*filter(is_utf8, places.held)]
        ours = self._ours
        self.hosts.tell(self._seen, guarded, ours.held, ours.roots, self._ran, self._since_ns)

    def begins(self, tool: str, roots: Sequence[str], *, stays: bool = False) -> None:
        """A tool that may write files below ``roots`` starts. Raises StoreError: then it must not."""
        with self._lock:
            _, places = self._places()
            is_quiet = not self._running and not self._stays
            if is_quiet:
                self._settle(self._ours.held)
                self._began_ns = time.time_ns()
                self._since_ns = self._since_ns or self._began_ns
            is_known = self._of is places and self._ours_of is places and self._asked.issuperset(roots)
            if not is_known or not self._ran:
                self._look()
                self._ran[tool] = time.time()
                self._may_change(places, roots, is_quiet=is_quiet)
                self._tell(places)
            if is_quiet:
                self._take_over()
            self._running += 1
            self._stays |= stays
            if tool in self._ran:
                self._ran.move_to_end(tool)
            self._ran[tool] = time.time()
            if len(self._ran) > _RAN_MAX:
                self._ran.popitem(last=False)

    def ended(self) -> None:
        """It ended."""
        with self._lock:
            self._running -= 1
            if self._seen is None or self._running or self._stays:
                return
            self._spans.append(self._span_now())
            if len(self._spans) > 2 * SPANS_MAX:
                self._spans = [*joined(self._spans)]
            self._note_replaced(self._seen)
            for folder in self._seen.code:
                self._after[folder] = (appeared.stamp_of(folder), self._names(folder))

    def _may_change(self, places: Places, roots: Sequence[str], *, is_quiet: bool) -> None:
        """Note where a tool that begins now may write. While others run, which hold less, what they could
        write counts as well."""
        assert self._seen is not None
        ours = Writes(
            roots=tuple(dict.fromkeys((*self._ours.roots, *_roots(places, roots)))),
            held=frozenset(filter(is_utf8, places.held)),
            looked=frozenset(self._seen.names),
        )
        if not is_quiet:
            ours = replace(ours, held=self._ours.held & ours.held, looked=self._ours.looked & ours.looked)
        elif self._spans and (self._ours.held, self._ours.looked) != (ours.held, ours.looked):
            self._keep()
        self._ours, self._ours_of = ours, places
        self._asked.update(roots)

    def _keep(self) -> None:
        """Keep for later hosts when ours ran."""
        self.past.add(self._ours_now())
        self._spans = []

    def _ours_now(self) -> Writes:
        now = (self._span_now(),) if self._running or self._stays else ()
        return replace(self._ours, tools=self._told(), spans=joined((*self._spans, *now)))

    def _span_now(self) -> tuple[int, int]:
        now_ns = time.time_ns()
        return min(self._began_ns, now_ns), max(self._began_ns, now_ns)  # the clock may have been set back

    def _writes(self) -> tuple[Writes, ...]:
        """When and where tools could write, of all hosts."""
        now_ns = time.time_ns()
        others = (of_host(host, now_ns) for host in self._others_now())
        return tuple(each for each in (*self.past.all(), *others, self._ours_now()) if each.spans)

    def _settle(self, held: Collection[str]) -> None:
        """Count what was confirmed as used where it is held by us, and no tool that began before it was can
        change it: from now on only people do."""
        for found in self.records.pending():
            is_held = any(at in held for at in upwards(found.path))
            is_open = any(
                host.is_alive and host.tools and is_below(found.path, host.roots)
                for host in self._others_now()
            )
            if is_held and not is_open and is_confirmed(found):
                self.records.put(replace(found, used_at=time.time_ns()))
                self._accept(found.path)

    def _take_over(self) -> None:
        """What came while nothing ran that may write: people made it."""
        seen = self._seen
        if seen is None:
            return
        names: dict[str, frozenset[str]] = {}
        for folder in seen.code:
            stamp, known = self._after.get(folder, (None, frozenset()))
            if stamp is not None and stamp != appeared.stamp_of(folder):
                now = self._names(folder)
                names[folder] = (seen.names[folder] | (now - known)) & now
        marks: dict[str, tuple[int, ...]] = {}
        for folder, paths in self._held.items():
            if (found := appeared.stamp_of(folder)) != self._stamps.get(folder):
                self._stamps[folder] = found
                marks |= {path: appeared.mark_of(path) for path in paths if path not in self._replaced}
        if names or marks:
            self._seen = replace(seen, names={**seen.names, **names}, marks={**seen.marks, **marks})

    def _note_replaced(self, seen: Seen) -> None:
        """Attack: an author saves a declaration while a tool runs. Another file then lies at its path, and
        the mount that held the one before is gone: the tool writes into the new one."""
        for folder, paths in self._held.items():
            if appeared.stamp_of(folder) != self._stamps.get(folder):
                self._replaced |= {
                    path for path in paths if appeared.mark_of(path)[2:3] != seen.marks[path][2:3]
                }

    def _look(self) -> None:
        """Take the snapshot, or add to it what was loaded since. What is in it stays as it was."""
        listing, places = self._places()
        if self._of is places and self._seen is not None:
            return
        before = self._seen or Seen()
        names = dict(before.names)
        for folder in filter(is_utf8, places.mixed):
            if folder not in names and before.newest(folder) is None:
                names[folder] = appeared.names_in(folder)
        above = dict(before.above)
        for folder in filter(is_utf8, upwards(os.path.realpath(self._cwd))):
            if folder not in above:
                above[folder] = _configuration(folder)
        marks = dict(before.marks)
        for path in filter(is_utf8, _documents(listing, places)):
            if path not in marks and before.newest(path) is None:
                marks[path] = appeared.mark_of(path)
        self._seen = Seen(
            names=names,
            declaring=before.declaring | names.keys() & {*places.declaring},
            narrow=before.narrow | names.keys() & {*places.narrow},
            above=above,
            marks=marks,
            held=frozenset(filter(is_utf8, places.files)),
            code=frozenset(names.keys() & {*places.code}),
        )
        self._of = places
        held: dict[str, tuple[str, ...]] = {}
        for path in marks.keys() & self._seen.held:
            held[os.path.dirname(path)] = (*held.get(os.path.dirname(path), ()), path)
        self._held = held
        for folder in held:
            self._stamps.setdefault(folder, appeared.stamp_of(folder))

    def _names(self, folder: str) -> frozenset[str]:
        """The names in a folder: looked at again only where its times changed, and are not those of now."""
        stamp = appeared.stamp_of(folder)
        known = self._looked.get(folder)
        if known is not None and known[0] == stamp:
            return known[1]
        names = appeared.names_in(folder)
        is_settled = stamp is not None and time.time_ns() - stamp[2] > SETTLED_NS
        self._looked[folder] = (stamp if is_settled else None, names)
        return names

    # -- documents ------------------------------------------------------------------------------------------

    def problems(self, found: Listing) -> dict[str, Problem]:
        """The documents of a listing that are left alone, by their paths as they are listed, and why."""
        self.judge()
        records, writes = self.records.all(), self._writes()
        for path in [path for path in records if not os.path.lexists(path)]:
            self.records.remove(path)
        if not records and not writes:
            return {}
        barred: dict[str, Problem] = {}
        contents: dict[str, str] = {}
        for pending in self.records.pending():
            contents |= appeared.contents_of(pending.path)[1]
        folders = Folders(self.records, writes)
        ran, links = Writes(spans=joined(span for each in writes for span in each.spans)), {*found.links}
        for row in found.rows:
            home = found.homes[row[0]]
            folder = home.folder
            if not folder.startswith("/"):
                continue  # what is fetched
            there = folders.of(folder)
            if there.is_held and not records and not links:
                continue
            is_late = there.moved is not None or home.server != "" or any(ran.ran_at(at[3]) for at in row[2])
            if not is_late and not records and not links:
                continue
            path = f"{folder}/{row[1][0]}"
            record = there.record
            for name in row[1] if record is None else ():
                inner = f"{folder}/{name}"
                if f"{there.real}/{name}" in contents:
                    found.confirmed[inner] = contents[f"{there.real}/{name}"]
                if is_late or f"{there.real}/{name}" in records or inner in links:
                    record = record or self.records.bars(inner)
                    if row[4] and record is None:  # its name promises nothing: it is judged by what it says
                        found.suspected.add(path)
                    elif record is None:
                        record = self._bars(inner, writes)
            if record is not None:
                barred[path] = problem_of(record, path)
        return barred

    def suspect(self, path: str) -> Problem | None:
        """Why a document that was read must not count after all."""
        record = self._bars(path, self._writes())
        return problem_of(record, path) if record is not None else None

    def _bars(self, path: str, writes: Sequence[Writes], *, with_folders: bool = True) -> Appearance | None:
        """The record that keeps a path from being used: of what appeared, or was changed."""
        record = self.records.bars(path)
        if record is None and writes:
            record = appearance_of(path, self.records, writes, with_folders=with_folders)
            if record is not None:
                self.records.put(record)
        return record

    def _accept(self, path: str) -> None:
        with self._lock:
            if self._seen is not None:
                folder, name = os.path.split(path)
                names = {**self._seen.names, folder: self._seen.names.get(folder, frozenset()) | {name}}
                self._seen = replace(self._seen, names=names)

    def judge(self) -> None:
        """Write down what appeared since the snapshots: ours, and those of other hosts."""
        with self._lock:
            if self._seen is not None:
                if self._running or self._stays:
                    self._note_replaced(self._seen)
                self._judge(self._seen, self._told(), is_ours=True)
        self._others = (-1.0, -1.0, None, ())
        for host in self._others_now():
            if host.tools:
                self._judge(host.seen, host.tools, is_ours=False)
            if not host.is_alive:
                self.past.add(of_host(host, time.time_ns()))
                for folder in host.seen.code:
                    for name in self._names(folder) - host.seen.names.get(folder, frozenset()):
                        path = os.path.join(folder, name)
                        if name.endswith(CODE) or os.path.isdir(path):
                            self._write_down(path, host.tools)
                self.hosts.forget(host)

    def _judge(self, seen: Seen, tools: tuple[str, ...], *, is_ours: bool) -> None:
        known = dict(seen.names)
        for folder in seen.declaring:
            for name in sorted(self._names(folder) - seen.names.get(folder, frozenset())):
                path = os.path.join(folder, name)
                if not self._declares(folder, name, is_narrow=folder in seen.narrow):
                    continue
                who = tools or tuple(filter(None, (self._may_write(folder),) if is_ours else ()))
                if who:
                    for inner in _parts(path):
                        self._write_down(inner, who)
                else:  # no tool that is loaded could have made it
                    known[folder] |= {name}
        for folder, names in seen.above.items():
            for name in _configuration(folder) - names if tools else ():
                self._write_down(os.path.join(folder, name), tools)
        marks = dict(seen.marks)
        for path, mark in seen.marks.items():
            now = appeared.mark_of(path)
            if now == mark:
                continue
            folder, name = os.path.split(path)
            could_write = path not in seen.held or (is_ours and path in self._replaced)
            if now and could_write and tools and self._declares(folder, name):
                self._write_down(path, tools, how=How.REPLACED if is_ours else How.APPEARED)
            marks[path] = now
            self._replaced.discard(path)
        if is_ours:
            self._seen = replace(seen, names=known, marks=marks)

    def _told(self) -> tuple[str, ...]:
        return tuple(reversed([*self._ran][-_TOLD_MAX:]))

    def _write_down(self, path: str, tools: tuple[str, ...], *, how: How = How.APPEARED) -> None:
        """Where it was replaced, what was confirmed of it before no longer counts."""
        known = self.records.on(path)
        if any(found.path != path or not found.confirmed for found in known):
            return
        if known and known[0].used_at and how is not How.REPLACED:
            return
        if not known or not is_confirmed(known[0]):
            at = appeared.changed_at(path)
            self.records.put(Appearance(path=path, at=at, tools=tools[:_TOLD_MAX], how=how))

    def _declares(self, folder: str, name: str, *, is_narrow: bool = False) -> bool:
        """Whether a name that appeared is a declaration, or holds some."""
        path = os.path.join(folder, name)
        if name in _NAMED_SO:
            return True
        if os.path.basename(folder) == ".ai" and name in OF_SPACES:
            return True
        if os.path.isdir(path):
            if name == ".ai":
                return any(os.path.lexists(os.path.join(path, each)) for each in OF_SPACES)
            is_passed_over = is_narrow or name.startswith(".") or name in sources.SKIPPED
            return not is_passed_over and self._holds_some(path)
        return name.endswith(".json") and self._holds_some(path)

    def _holds_some(self, path: str) -> bool:
        mark = appeared.mark_of(path)
        if self._judged.get(path) == mark and not os.path.isdir(path):
            return False
        found = sources.listing([Source(path=path)])
        for candidate in found.candidates:
            mark = appeared.mark_of(candidate.path)
            if self._judged.get(candidate.path) == mark:
                continue
            if declares(candidate):
                return True
            if len(self._judged) >= _KNOWN_MAX:
                self._judged.clear()
            self._judged[candidate.path] = mark
        return any(problem.code == "source.not-probed" for problem in found.problems)

    # -- code -----------------------------------------------------------------------------------------------

    def matters(self, tool: Tool) -> bool:
        """Whether what appeared, or was changed, could be part of what a tool runs."""
        if not self.records.are_settled():
            return True
        _, places = self._places()
        if tool.key in places.shared and (self._seen is not None or self._others_now()):
            return True
        return not self._is_checked(tool, places) and bool(self._writes())

    def _is_checked(self, tool: Tool, places: Places) -> bool:
        """Whether the code of a tool was looked at since it was loaded, and so is held."""
        if self._checked[0] is not places:
            self._checked = (places, {})
        return self._checked[1].get(tool.key) is tool

    def code(self, tool: Tool, known: SharedCode | None = None) -> SharedCode:
        """The code of a tool that could be among what appears. ``known``: the same as it was found before."""
        _, places = self._places()
        if known is not None and known.places is places:
            return known
        return _with_imports(tool, places, self._code_of(tool))

    def bars(self, tool: Tool, code: SharedCode) -> Appearance | None:
        """What keeps a tool from running: part of its code appeared, and no person confirmed it."""
        looked = self._looks(code)
        if code.looked == looked:
            return None
        writes = self._writes()
        moved: Appearance | None = None
        for path in self._paths_of(code, writes):
            record = self._appeared(path, writes)
            if record is not None and record.how is not How.MOVED:
                return record
            moved = moved or record  # told last: to confirm a file in it confirms where it is
        if moved is not None:
            return moved
        code.looked = looked
        if self.records.are_settled():
            self._checked[1][tool.key] = tool
        return None

    def _paths_of(self, code: SharedCode, writes: Sequence[Writes]) -> Iterator[str]:
        """The files of a tool's code, and what it would import now."""
        yield from code.files
        if code.imports:
            with self._lock:
                if not self._running and not self._stays:
                    self._take_over()
        for folder, file, text in code.imports:
            if self._has_new(folder) or any(each.reaches(f"{folder}/") for each in writes):
                for path in self._imports(file, text, os.path.dirname(file) != folder):
                    yield path
                    # Attack: compiled code of a module that is there, which an interpreter takes for its.
                    yield os.path.join(os.path.dirname(path), "__pycache__")

    def _looks(self, code: SharedCode) -> object:
        """What differs whenever a name came that could be part of a tool's code: all that most calls ask."""
        seen = self._seen
        if self.records.pending():
            return object()
        folders = {folder for folder, *_ in code.imports}
        if seen is not None:
            folders |= {at for path in code.files for at in upwards(path) if at in seen.names}
        stamps = tuple((folder, appeared.stamp_of(folder)) for folder in sorted(folders))
        now_ns = time.time_ns()
        is_settled = all(stamp is None or now_ns - stamp[2] > SETTLED_NS for _, stamp in stamps)
        others = self._others_now()
        links = tuple(os.path.realpath(os.path.dirname(path)) for path in code.files) if not seen else ()
        known = (stamps, others, self.records.all(), self.past.all(), links)
        return known if is_settled else object()

    def _has_new(self, folder: str) -> bool:
        """Whether there are names in a folder of code that were not there before tools ran."""
        names = self._names(folder)
        if any(is_below(path, (folder,)) for path in self.records.all()):
            return True
        return any(names - seen.names[folder] for seen in self._all_seen() if folder in seen.names)

    def _all_seen(self) -> Iterator[Seen]:
        if self._seen is not None:
            yield self._seen
        for host in self._others_now():
            if host.tools:
                yield host.seen

    def appeared(self, path: str) -> Appearance | None:
        """Why a file must not be used: it appeared, or was changed, and no person confirmed it."""
        return self._appeared(path, self._writes(), with_folders=False)

    def _appeared(
        self, path: str, writes: Sequence[Writes], *, with_folders: bool = True
    ) -> Appearance | None:
        if not os.path.lexists(path):
            return None
        if not any(known.used_at for known in self.records.on(path)):
            for seen in self._all_seen():
                top = seen.newest(path)
                if top is not None and (tools := self._told() or self._tools_of(seen)):
                    # Attack: a link to a name that is no text, and cannot be kept.
                    self._write_down(top if is_utf8(top) else path, tools)
        return self._bars(path, writes, with_folders=with_folders)

    def _tools_of(self, seen: Seen) -> tuple[str, ...]:
        return next((host.tools for host in self._others_now() if host.seen is seen), ())

    def _others_now(self) -> Sequence[OpenHost]:
        now = time.monotonic()
        looked, at, stamp, found = self._others
        if looked <= now < looked + appeared.FRESH_S:
            return found
        seen = appeared.stamp_of(self.hosts.folder)
        if seen != stamp or not at <= now < at + _OTHERS_S:
            at, found = now, self.hosts.others() if seen is not None else ()
        self._others = (now, at, seen, found)
        return found

    def guarded(self, roots: Sequence[str]) -> tuple[str, ...]:
        """What belongs to tools of other hosts that are open. ``roots``: where ours work: a folder that holds
        one of them is shared for us."""
        hosts = self._others_now()
        if not hosts:
            return ()
        return tuple(
            path
            for host in hosts
            for path in (host.guarded if host.is_alive else ())
            if not any(is_below(root, (path,)) for root in roots)
        )

    # -- the end --------------------------------------------------------------------------------------------

    def close(self, tools: Iterable[Tool]) -> None:
        """Look a last time at what our tools made, and tell other hosts that they are gone."""
        with self._lock:
            try:
                if self._seen is not None and self._ran:
                    self._judge(self._seen, self._told(), is_ours=True)
                    shared = self._places()[1].shared
                    if shared and any(self._names(at) - names for at, names in self._seen.names.items()):
                        for tool in tools:
                            if tool.key in shared:
                                self.bars(tool, self.code(tool))
                    self._keep()
                if self.records.pending():
                    self._settle(frozenset(self._places()[1].held))
            except StoreError:  # the next host finds us as one that was killed, and looks in our place
                self.hosts.leave()
            except BaseException:
                self.hosts.leave()
                raise
            else:
                self.hosts.end()


def declares(candidate: Candidate) -> bool:
    """Whether a file is a declaration, as far as it says so itself."""
    for _, document in sources.documents([candidate], lambda paths: []):
        name, compiled = formats.compile_document(document, _RULES)
        return name is not None or any(each.code == "source.not-probed" for each in compiled.problems)
    return False


def problem_of(record: Appearance, path: str) -> Problem:
    """What a person is told about a declaration that is left alone."""
    message, hint = words_of(record)
    return Problem(code=UNCONFIRMED, message=message, path=path, hint=hint)


def words_of(record: Appearance) -> tuple[str, str]:
    """What happened, and what to do."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.at))
    who = ", ".join(record.tools) or "a tool that may write there"
    message = f"{record.path} {record.how} at {at}, while {who} could write there; it is not used"
    return (
        message,
        f"read it, and if it is yours, confirm it: toolcrib trust {quote(record.path)}; or remove it",
    )


def _documents(listing: Listing, places: Places) -> Iterator[str]:
    """The documents that lie in shared folders."""
    real: dict[str, str] = {}
    for row in listing.rows:
        home = listing.homes[row[0]]
        if home.fetched or is_below(home.folder, places.folders):
            continue
        if home.folder not in real:
            real[home.folder] = os.path.realpath(home.folder)
        if not is_below(real[home.folder], places.folders):
            for name in row[1]:
                yield os.path.join(real[home.folder], name)


def _parts(path: str) -> tuple[str, ...]:
    """What of a name that appeared is declarations: of a space of rye's not the data beside them."""
    if os.path.basename(path) != ".ai" or os.path.islink(path):
        return (path,)
    return tuple(inner for name in OF_SPACES if os.path.lexists(inner := os.path.join(path, name)))


def _configuration(folder: str) -> frozenset[str]:
    return frozenset(name for name in CONFIGURATION if os.path.lexists(os.path.join(folder, name)))


def _with_imports(tool: Tool, places: Places, code: Code) -> SharedCode:
    """A tool's code, and the folders that it imports from."""
    shared = {*places.mixed}
    files = [*code.files]
    imports: list[tuple[str, str, bytes | None]] = []
    is_handler = isinstance(tool.invocation, CallPython) and tool.invocation.file is None
    for path in code.files:
        folder = os.path.realpath(os.path.dirname(path))
        # Attack: a module above the folder of handlers, from where they may import.
        if is_handler and (above := os.path.dirname(folder)) in shared:
            imports.append((above, os.path.join(folder, os.path.basename(path)), None))
        if path.endswith(CODE):
            imports.append((folder, os.path.join(folder, os.path.basename(path)), None))
    for at, text in code.texts:
        folder = os.path.realpath(at)
        imports.append((folder, os.path.join(folder, "-c.py"), text))
    for at in code.modules:
        files += (os.path.join(at, name) for name in ("node_modules", "package.json"))
    return SharedCode(places, tuple(files), tuple(imports))


def _roots(places: Places, roots: Sequence[str]) -> Iterator[str]:
    """Below which folders tools that may write below ``roots`` are watched: not the user's own folder, nor
    those above where tools run, which hold other projects."""
    for root in (*places.roots, *roots):
        is_above = any(is_below(folder, (root,)) and folder != root for folder in places.roots)
        if is_utf8(root) and root not in places.narrow and not is_above:
            yield root
