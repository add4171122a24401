"""The lock file: what every tool looked like when a person approved it, and what differs now.

An entry holds what the model sees (whole, so that a later difference can be shown), what the tool asks of the
host, the digest of what runs, every file with the digest of its complete bytes and its mode, and the programs
of the machine that run it. The text is JSON with sorted members, one to a line, so that it can be committed
and reviewed; paths are relative to it, and neither a machine's own paths nor a secret are ever in it.

Pure. Looking at files, and remembering what this host approved, is ``pinning.py``; whether a tool that
differs may run is policy's business.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import orjson
from msgspec import Struct, field

from toolcrib import former, jsontext
from toolcrib.jsontext import JsonObject, JsonValue

VERSION: Final = 2
_MARKER: Final = "toolcrib.lock"
"""The member that holds the version."""
BYTES_MAX: Final = 32 << 20
ENTRIES_MAX: Final = 20_000
FILES_MAX: Final = 2_000
"""Of one tool."""
ANCHOR: Final = "\0"
"""Stands for the lock's folder in digests of invocations. No declaration can hold a NUL character, so nobody
can write it himself."""

_VALUES_MAX: Final = 4_000_000
_LINES_MAX: Final = 5_000
"""Longer texts are not compared line by line: that takes time that grows with the square."""
_SHOWN_LINES_MAX: Final = 400
_VALUE_CHARS_MAX: Final = 200
_NAMED_MAX: Final = 4
_PATH_CHARS_MAX: Final = 100
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_FILE: Final = re.compile(r"([0-7]{4}) (sha256:[0-9a-f]{64})")
_MEMBERS: Final = ("asks", "files", "from", "name", "programs", "runs", "seen", "shown")
_SHOWN: Final = ("description", "input_schema", "name", "output_schema")
_REMAKE: Final = "restore it from version control, or look at your tools and run `toolcrib lock` again"


class PinnedFile(Struct, frozen=True, kw_only=True):
    """A file as it was: its path beside the lock, the digest of all its bytes, and its mode."""

    path: str
    digest: str
    mode: str
    """As version control keeps it: ``0755`` where it may be executed, else ``0644``, and any special bits.
    The rest of a mode depends on who checked it out."""


class Entry(Struct, frozen=True, kw_only=True):
    """One tool as it was approved."""

    key: str
    name: str
    """The bare name that leads to it."""
    source: str
    """The declaration's path beside the lock, or the server that listed the tool."""
    seen: str
    """The digest of ``shown``, which records of calls hold as well."""
    shown: bytes
    """Name, description and schemas, as compact JSON with sorted members."""
    asks: bytes
    """Effect and needs, in the same form: a change of them is no change of what the model sees or what runs,
    and may open a door all the same."""
    runs: str
    files: tuple[PinnedFile, ...] = ()
    """In the order of their paths."""
    programs: tuple[tuple[str, str], ...] = ()
    """Programs of the machine by the names that declarations and shebangs use, each with the name of the file
    that it really is (``python3``: ``python3.11``). Not where it lies and not its digest: both differ from
    machine to machine, and the next security update would refuse every tool. Where a program lies on the
    machine that wrote the lock, that machine remembers for itself."""

    @property
    def document(self) -> JsonObject:
        """What the model sees."""
        found = jsontext.loads_own(self.shown)
        assert isinstance(found, dict)
        return found


class Lock(Struct, frozen=True):
    """All entries by their keys."""

    entries: Mapping[str, Entry] = field(default_factory=dict)

    def with_entries(self, entries: Iterable[Entry], *, without: Iterable[str] = ()) -> Lock:
        gone = frozenset(without)
        kept = {key: entry for key, entry in self.entries.items() if key not in gone}
        return Lock({**kept, **{entry.key: entry for entry in entries}})


class Defect(Struct, frozen=True):
    """Why a text is no lock, where, and what to do."""

    message: str
    line: int | None = None
    hint: str = _REMAKE


class Watched(Struct, frozen=True, kw_only=True):
    """What has to be looked at to know a tool's bytes. Paths are absolute."""

    how: str
    """The digest of the invocation on this machine, as calls carry it."""
    placed: str
    """The same where the lock's folder has no name of its own, as a lock holds it."""
    seen: str
    shown: bytes
    """As in an entry."""
    own: tuple[str, ...] = ()
    """The files that a call runs: ``how`` and their digests make the digest of a call."""
    files: tuple[str, ...] = ()
    """What is pinned. A program that lies elsewhere on the machine is none of it, though a call runs it."""
    folders: tuple[str, ...] = ()
    """Whatever lies in them is pinned, too."""
    programs: tuple[str, ...] = ()
    """Programs of the machine: names that are looked for on PATH, and paths."""
    started: tuple[str, ...] = ()
    """Files that are started as programs, so that their first lines name what runs them."""
    imports_above: bool = False
    """Whether its files also import from the folder above their own."""
    source: str = ""
    """An MCP server, by its key; empty: the declaration's path."""


def runs_digest(placed: str, digests: Iterable[str]) -> str:
    """The digest of what runs: the invocation and the files it runs, wherever the folder lies."""
    return "sha256:" + hashlib.sha256("\n".join([placed, *digests]).encode("ascii")).hexdigest()


def mode_text(mode: int) -> str:
    """A file's mode as a lock holds it."""
    special = (mode >> 9) & 0o7
    return f"{special}{'755' if mode & 0o100 else '644'}"


def ordered(document: JsonObject) -> bytes:
    """A document as entries hold it: compact, its members sorted."""
    with suppress(TypeError):  # an integer beyond 64 bits
        return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")


# -- the text -----------------------------------------------------------------------------------------------


def write(lock: Lock) -> bytes:
    """The text of a lock: the same entries give the same bytes, anywhere."""
    document = {_MARKER: VERSION, "tools": {key: _told(lock.entries[key]) for key in lock.entries}}
    text = json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True)
    if not text.isascii():
        text = "".join(map(_visible, text))
    return f"{text}\n".encode()


def _told(entry: Entry) -> JsonObject:
    shown = entry.document
    if "\n" in str(shown["description"]):  # a line to a line, so that a review sees which one changed
        shown["description"] = str(shown["description"]).split("\n")
    return {
        "asks": jsontext.loads_own(entry.asks),
        "files": {file.path: f"{file.mode} {file.digest}" for file in entry.files},
        "from": entry.source,
        "name": entry.name,
        "programs": dict(entry.programs),
        "runs": entry.runs,
        "seen": entry.seen,
        "shown": shown,
    }


def _visible(char: str) -> str:
    """Attack: a description whose hidden characters show a reviewer of the lock something else."""
    if char < "\x7f" or unicodedata.category(char) not in ("Cc", "Cf", "Cn", "Co", "Zl", "Zp"):
        return char
    return json.dumps(char)[1:-1]


def read(content: bytes) -> Lock | Defect:
    """A lock from its text. Never raises, whatever the bytes."""
    if len(content) > BYTES_MAX:
        return Defect(f"it has more than {BYTES_MAX:,} bytes")
    parsed = jsontext.read(content, values_max=_VALUES_MAX)
    if parsed.defect is not None:
        return Defect(f"not valid JSON: {parsed.defect.message}", parsed.defect.line)
    for repeated in parsed.duplicates[:1]:
        # Attack: two entries for one tool, of which a reviewer sees the one and we the other.
        return Defect(f"{_quoted(repeated.key)} stands there twice", repeated.line)
    try:
        return Lock(dict(_entries(parsed.value)))
    except _Wrong as wrong:
        text = jsontext.decode(content)
        spans = jsontext.locate(text, {wrong.pointer}) if isinstance(text, str) else {}
        span = spans.get(wrong.pointer)
        return Defect(wrong.message, span.line if span is not None else None, wrong.hint)


class _Wrong(Exception):
    def __init__(self, message: str, *pointer: str, hint: str = _REMAKE) -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer
        self.hint = hint


def _entries(value: JsonValue) -> Iterator[tuple[str, Entry]]:
    if isinstance(value, dict) and (marker := former.name_of(_MARKER)) in value:
        raise _Wrong(former.WRITTEN, marker, hint="look at your tools and run `toolcrib lock` again")
    if not isinstance(value, dict) or _MARKER not in value:
        raise _Wrong("it is no lock of ours")
    if value[_MARKER] != VERSION:
        version = jsontext.compact(value[_MARKER]).decode("utf-8")[:20]
        raise _Wrong(
            f"it has version {version}, and this program reads version {VERSION}",
            _MARKER,
            hint="use the version of toolcrib that wrote it, or run `toolcrib lock` again",
        )
    tools = value.get("tools")
    if not isinstance(tools, dict) or len(value) != 2:
        raise _Wrong("it must hold exactly its version and its tools")
    if len(tools) > ENTRIES_MAX:
        raise _Wrong(f"it holds more than {ENTRIES_MAX:,} tools", "tools")
    for key, told in tools.items():
        yield key, _entry(key, told)


def _entry(key: str, told: JsonValue) -> Entry:
    def wrong(what: str, *members: str) -> _Wrong:
        return _Wrong(f"{_quoted(key)}: {what}", "tools", key, *members)

    if not isinstance(told, dict) or tuple(sorted(told)) != _MEMBERS:
        raise wrong(f"an entry has exactly the members {', '.join(_MEMBERS)}")
    for name in ("runs", "seen"):
        if not isinstance(told[name], str) or not _DIGEST.fullmatch(told[name]):
            raise wrong("must be sha256: and 64 hexadecimal digits", name)
    shown, asks = told["shown"], told["asks"]
    if not isinstance(shown, dict) or tuple(sorted(shown)) != _SHOWN or not isinstance(shown["name"], str):
        raise wrong(f"must hold exactly {', '.join(_SHOWN)}", "shown")
    if isinstance(shown["description"], list) and all(isinstance(line, str) for line in shown["description"]):
        shown = {**shown, "description": "\n".join(shown["description"])}
    if not isinstance(shown["description"], str):
        raise wrong("must be a text, or its lines", "shown", "description")
    if not isinstance(asks, dict):
        raise wrong("must be an object", "asks")
    for name in ("from", "name"):
        if not isinstance(told[name], str):
            raise wrong("must be a text", name)
    return Entry(
        key=key,
        name=told["name"],
        source=told["from"],
        seen=told["seen"],
        shown=ordered(shown),
        asks=ordered(asks),
        runs=told["runs"],
        files=tuple(_files(told["files"], wrong)),
        programs=tuple(_programs(told["programs"], wrong)),
    )


def _files(told: JsonValue, wrong: Callable[..., _Wrong]) -> Iterator[PinnedFile]:
    if not isinstance(told, dict) or len(told) > FILES_MAX:
        raise wrong(f"must be an object of at most {FILES_MAX:,} files", "files")
    for path in sorted(told):
        text = told[path]
        found = _FILE.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise wrong("must be a mode and a sha256 digest", "files", path)
        if path.startswith("/"):
            raise wrong("must be relative to the lock's folder", "files", path)
        yield PinnedFile(path=path, mode=found[1], digest=found[2])


def _programs(told: JsonValue, wrong: Callable[..., _Wrong]) -> Iterator[tuple[str, str]]:
    if not isinstance(told, dict) or len(told) > FILES_MAX:
        raise wrong("must be an object of program names", "programs")
    for name in sorted(told):
        real = told[name]
        if not isinstance(real, str):
            raise wrong("must be a text", "programs", name)
        yield name, real


def _quoted(text: str) -> str:
    return jsontext.compact(text if len(text) <= 60 else f"{text[:59]}…").decode("utf-8")


# -- what differs -------------------------------------------------------------------------------------------


class Change(Struct, frozen=True, kw_only=True):
    """One thing that is not as it was."""

    what: str
    """What a person calls it: ``its description``, a file's path."""
    how: str
    """``was changed``, ``was added``, ``is gone`` or a few words more."""
    old: PinnedFile | None = None
    new: PinnedFile | None = None
    """For a file: what it was and is."""
    lines: tuple[str, ...] = ()
    """The difference line by line, where it needs no file."""


class Drift(Struct, frozen=True, kw_only=True):
    """A tool that is not as it was approved."""

    key: str
    name: str
    changes: tuple[Change, ...]

    @property
    def sentence(self) -> str:
        """One sentence for whoever called it."""
        told = [f"{_told_path(change.what)} {change.how}" for change in self.changes[:_NAMED_MAX]]
        if len(self.changes) > _NAMED_MAX:
            told.append(f"and {len(self.changes) - _NAMED_MAX} more")
        return f"{self.name} is not as it was locked: {', '.join(told)}"


def _told_path(path: str) -> str:
    """Attack: a file whose name is a message to the model."""
    cut = path if len(path) <= _PATH_CHARS_MAX else f"…{path[1 - _PATH_CHARS_MAX :]}"
    return cut if cut.isprintable() else ascii(cut)


Texts = Callable[[PinnedFile], "str | None"]
"""The text of a file as it was or is; None where nobody knows it."""


def drift(entry: Entry, now: Entry) -> Drift | None:
    """What differs between a tool as it was approved and as it is; None: nothing."""
    changes = [*_file_changes(entry, now), *_program_changes(entry, now)]
    if entry.source != now.source:
        changes.insert(0, Change(what="where it comes from", how=f"was {entry.source}, is {now.source}"))
    changes += _shown_changes(entry, now)
    if entry.asks != now.asks:
        lines = tuple(pointer_lines(jsontext.loads_own(entry.asks), jsontext.loads_own(now.asks)))
        changes.append(Change(what="what it asks for", how="was changed", lines=lines))
    if entry.runs != now.runs and not any(change.old or change.new for change in changes):
        changes.append(Change(what="how it is run", how="was changed"))
    return Drift(key=entry.key, name=now.name, changes=tuple(changes)) if changes else None


def _file_changes(entry: Entry, now: Entry) -> Iterator[Change]:
    old, new = {file.path: file for file in entry.files}, {file.path: file for file in now.files}
    if old == new:
        return
    for path in sorted({*old, *new}):
        was, is_ = old.get(path), new.get(path)
        if was == is_:
            continue
        if was is None:
            how = "was added"
        elif is_ is None:
            how = "is gone"
        elif was.digest == is_.digest:
            how = f"had the mode {was.mode} and has {is_.mode}"
        else:
            how = "was changed"
        yield Change(what=path, how=how, old=was, new=is_)


def _program_changes(entry: Entry, now: Entry) -> Iterator[Change]:
    found = dict(now.programs)
    for name, real in entry.programs:
        if real and found.get(name) and found[name] != real:
            yield Change(what=f"the program {name}", how=f"was {real} and is {found[name]}")


def _shown_changes(entry: Entry, now: Entry) -> Iterator[Change]:
    if entry.shown == now.shown and entry.seen == now.seen:
        return
    old, new = entry.document, now.document
    if old["name"] != new["name"]:
        yield Change(what="the name that models see", how=f"was {_quoted(str(old['name']))}")
    if old["description"] != new["description"]:
        lines = tuple(text_lines(str(old["description"]), str(new["description"])))
        yield Change(what="its description", how="was changed", lines=lines)
    for member in ("input_schema", "output_schema"):
        if jsontext.canonical(old[member]) != jsontext.canonical(new[member]):
            lines = tuple(pointer_lines(old[member], new[member]))
            yield Change(what=f"its {member.replace('_', ' ')}", how="was changed", lines=lines)
    if entry.seen != jsontext.digest(old):
        # Attack: a lock whose readable part was edited to look right.
        yield Change(what="its entry in the lock", how="does not fit its own digest")


def text_lines(old: str, new: str) -> Iterator[str]:
    """Two texts compared line by line, as ``diff -u`` does."""
    if old.endswith("\n") and new.endswith("\n"):
        old, new = old[:-1], new[:-1]
    was, is_ = old.split("\n"), new.split("\n")
    if len(was) > _LINES_MAX or len(is_) > _LINES_MAX:
        yield f"({len(was):,} lines were, {len(is_):,} are: too many to compare here)"
        return
    found = difflib.unified_diff(was, is_, n=2, lineterm="")
    for number, line in enumerate(line for place, line in enumerate(found) if place > 1):
        if number >= _SHOWN_LINES_MAX:
            yield "… and more"
            return
        yield line


def pointer_lines(old: JsonValue, new: JsonValue) -> Iterator[str]:
    """Two JSON values compared place by place."""
    was, is_ = _places(old), _places(new)
    for number, place in enumerate(dict.fromkeys((*was, *is_))):
        if number >= _SHOWN_LINES_MAX:
            yield "… and more"
            return
        if place in was and place in is_:
            if was[place] != is_[place]:
                yield f"{place}: {_cut(was[place])} -> {_cut(is_[place])}"
        elif place in was:
            yield f"- {place}: {_cut(was[place])}"
        else:
            yield f"+ {place}: {_cut(is_[place])}"


def _places(value: JsonValue) -> dict[str, str]:
    return {
        jsontext.pointer_text(pointer) or "(all of it)": jsontext.canonical(found).decode("utf-8")
        for pointer, found in jsontext.walk(value)
        if not isinstance(found, (dict, list)) or not found
    }


def _cut(text: str) -> str:
    more = len(text) - _VALUE_CHARS_MAX
    return text if more <= 0 else f"{text[:_VALUE_CHARS_MAX]}… ({more:,} characters more)"


def diff_lines(
    drift: Drift, *, was: Texts, is_: Texts, told: set[tuple[PinnedFile | None, PinnedFile | None]]
) -> Iterator[str]:
    """The whole difference for a person, each change under its heading. Not escaped for a terminal.

    ``told`` are the files whose changes were shown before, for another tool: they are only named again.
    """
    for change in drift.changes:
        yield f"{change.what} {change.how}"
        for line in change.lines:
            yield f"  {line}"
        old, new = change.old, change.new
        if old is None and new is None:
            continue
        if (old, new) in told:
            yield "  (shown above)"
            continue
        told.add((old, new))
        if old is not None and new is not None and old.digest != new.digest:
            yield f"  {old.digest[:19]}… -> {new.digest[:19]}…"
            if old.mode != new.mode:
                yield f"  mode {old.mode} -> {new.mode}"
        before = was(old) if old is not None else ""
        after = is_(new) if new is not None else ""
        if before is None or after is None:
            yield "  (its text as it was is not known here)" if before is None else "  (it is no text)"
        elif before != after:
            yield from (f"  {line}" for line in text_lines(before, after))


# -- renames and shadows ------------------------------------------------------------------------------------


class Move(Struct, frozen=True, kw_only=True):
    """A tool that is not in the lock, and the entry it takes after."""

    key: str
    entry: Entry
    is_rename: bool
    """True: the same tool under another key. False: another one that takes the entry's bare name."""


def moves(lock: Lock, now: Sequence[Entry]) -> Iterator[Move]:
    """Which tools that the lock does not know are renamed ones of it, or take the names of others."""
    present = {entry.key for entry in now}
    gone = [entry for key, entry in lock.entries.items() if key not in present]
    by_name = names(lock)
    for new in now:
        if new.key in lock.entries or new.key.endswith("/"):
            continue
        renamed = next((old for old in gone if _is_same_tool(old, new)), None)
        shadowed = by_name.get(new.name)
        if renamed is not None:
            yield Move(key=new.key, entry=renamed, is_rename=True)
        elif shadowed is not None:
            yield Move(key=new.key, entry=shadowed, is_rename=False)


def names(lock: Lock) -> dict[str, Entry]:
    """The bare names that a lock knows, each with its first owner. MCP servers themselves have none."""
    found: dict[str, Entry] = {}
    for key in sorted(key for key in lock.entries if not key.endswith("/")):
        found.setdefault(lock.entries[key].name, lock.entries[key])
    return found


def _is_same_tool(old: Entry, new: Entry) -> bool:
    """The same schema, and the same thing runs: by its digest, by its files' bytes, or by its server."""
    was, is_ = old.document, new.document
    if was["input_schema"] != is_["input_schema"]:
        return False
    if old.runs == new.runs:
        return True
    if old.files:
        return sorted(file.digest for file in old.files) == sorted(file.digest for file in new.files)
    return old.source == new.source and was["description"] == is_["description"]
