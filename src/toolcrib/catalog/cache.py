"""The warm cache: compiled declarations in one file, so that unchanged files are not read again.

A cache is only ever a shortcut. It lives in the user's state folder, belongs to the user alone and is checked
by digest; one that is damaged, foreign, from other code or writable by others is thrown away and rebuilt,
never trusted. Sections and records stay encoded until somebody asks for them, because most loaded tools are
never looked at: a warm start is a look at the folders and one comparison, and a load that takes over what did
not change takes over where it lies.

The file: a magic line, the length and digest of the directory, the directory, the stamp (what the folders
looked like), then the sections. ``loading`` lies below and decides what is worth keeping.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache, cached_property
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import orjson
from msgspec import Struct

from toolcrib import __version__, jsontext, model
from toolcrib.model import Compiled, Problem, Role, Severity, Skill, Tool
from toolcrib.store import private

# -- frozen values as JSON ----------------------------------------------------------------------------------
# A frozen value is [number of its class, field, field, ...]. Tuples, enumerations and bytes are plain arrays
# and strings: the field's type says what they were.

_CLASSES: Final[list[Any]] = [
    kind for _, kind in sorted(vars(model).items()) if isinstance(kind, type) and issubclass(kind, Struct)
]
_NUMBERS: Final = {kind: number for number, kind in enumerate(_CLASSES)}


@cache
def _getter(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    names = kind.__struct_fields__
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _tagged(value: Any) -> Any:
    kind: Any = type(value)
    if kind is bytes:
        return value.decode("utf-8")
    return _NUMBERS[kind], *_getter(kind)(value)


def encode(value: object) -> bytes:
    try:
        return orjson.dumps(value, default=_tagged, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits somewhere in a note
        return jsontext.compact(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return _plain(_tagged(value)) if type(value) in _NUMBERS or isinstance(value, bytes) else value


def decode(kind: Any, text: bytes) -> Any:
    """The value of a type that ``encode`` wrote."""
    return _converter(kind)(jsontext.loads_own(text))


def _same(plain: Any) -> Any:
    return plain


_USES_MIN: Final = 8
"""So many values of a class are made before what makes them is written out: a command looks at a few tools,
a server at all of them."""
_USES: Final[Counter[int]] = Counter()
_MAKERS: Final[dict[int, Callable[[list[Any]], Any]]] = {}


def _tag(plain: Any) -> Any:
    number = plain[0]
    make = _MAKERS.get(number)
    if make is not None:
        return make(plain)
    _USES[number] += 1
    if _USES[number] > _USES_MIN:
        _MAKERS[number] = _maker(number)
    values = zip(_field_converters(number), plain[1:], strict=True)
    return _CLASSES[number](**{name: convert(value) for (name, convert), value in values})


def _maker(number: int) -> Callable[[list[Any]], Any]:
    converters = _field_converters(number)
    names: dict[str, Any] = {"_kind": _CLASSES[number]}
    made: list[str] = []
    for at, (name, convert) in enumerate(converters, 1):
        names[f"_{at}"] = convert
        made.append(f"{name}=plain[{at}]" if convert is _same else f"{name}=_{at}(plain[{at}])")
    wrong = f"if len(plain) != {len(converters) + 1}: raise ValueError('not so many fields')"
    exec(f"def make(plain):\n {wrong}\n return _kind({', '.join(made)})", names)  # noqa: S102 - our own fields
    return names["make"]  # type: ignore[no-any-return]


@cache
def _field_converters(number: int) -> list[tuple[str, Callable[[Any], Any]]]:
    hints = get_type_hints(_CLASSES[number])
    return [(name, _converter(hints[name])) for name in _CLASSES[number].__struct_fields__]


@cache
def _converter(kind: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        inner = _converter(next(found for found in arguments if found is not NoneType))
        return _same if inner is _same else lambda plain: None if plain is None else inner(plain)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            one = _converter(arguments[0])
            return tuple if one is _same else lambda plain: tuple(map(one, plain))
        each = tuple(map(_converter, arguments))
        return lambda plain: tuple(convert(item) for convert, item in zip(each, plain, strict=True))
    if kind is bytes:
        return str.encode
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {member.value: member for member in kind}.__getitem__
    return _tag if isinstance(kind, type) and issubclass(kind, Struct) else _same


# -- what is kept -------------------------------------------------------------------------------------------


class Damaged(Exception):
    """The cache is not what we wrote."""


class _File:
    """A cache file that is open for as long as anything may be read from it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self._descriptor, end - start, start)


class _Stack:
    """A section whose pieces are read one by one, because most of them are never looked at: a server of ten
    thousand tools keeps none of them. It is read once to see that it is as it was written."""

    def __init__(self, file: _File, start: int, end: int, mark: str) -> None:
        self._file = file
        self._start = start
        self._end = end
        self._mark = mark
        self._is_checked = False

    def check(self) -> None:
        hashed = hashlib.blake2b(digest_size=_MARK_CHARS // 2)
        for at in range(self._start, self._end, _CHUNK_BYTES):
            hashed.update(self._file.read(at, min(at + _CHUNK_BYTES, self._end)))
        if hashed.hexdigest() != self._mark:
            raise Damaged("a section of the cache was changed")
        self._is_checked = True

    def piece(self, start: int, end: int) -> bytes:
        if not self._is_checked:
            self.check()
        return self._file.read(self._start + start, self._start + end)


_CARD: Final = ("key", "name", "scope", "spoken", "role", "aliases")
"""What is at hand of a tool that lies in the cache."""
_card: Final = attrgetter(*_CARD)


class Shelved:
    """A tool that is still in the cache. What linking looks at is here; the rest is decoded when it is read.

    It stands in for a ``Tool`` while documents are linked. The catalog hands out none.
    """

    __slots__ = ("_end", "_stack", "_start", "_whole", *_CARD)

    def __init__(self, stack: _Stack, start: int, end: int, card: tuple[Any, ...]) -> None:
        self._stack = stack
        self._start = start
        self._end = end
        self._whole: Tool | None = None
        self.key, self.name, self.scope, self.spoken, role, aliases = card
        self.role = Role(role)
        self.aliases = tuple(aliases)

    def __getattr__(self, name: str) -> Any:
        if self._whole is None:
            self._whole = self.take()
        return getattr(self._whole, name)

    def text(self) -> bytes:
        return self._stack.piece(self._start, self._end)

    def take(self) -> Tool:
        tool: Tool = decode(Tool, self.text())
        return tool

    def forget(self) -> None:
        """Drop the decoded tool, which only linking needed."""
        self._whole = None


def shelved(tool: Tool) -> Shelved | None:
    """Return what stands in for a tool that is still in the cache, or None for a tool."""
    found: object = tool
    return found if isinstance(found, Shelved) else None


class Left(NamedTuple):
    """What a document tells besides its tools, where it lies in the cache."""

    stack: _Stack
    start: int
    end: int
    has_errors: bool

    def text(self) -> bytes:
        return self.stack.piece(self.start, self.end)

    def read(self) -> Compiled:
        return _compiled(jsontext.loads_own(self.text()))


class Kept(Struct, frozen=True):
    """One compiled document: its format, its mark (a digest of what its files looked like) and its value."""

    mark: str
    format: str | None
    compiled: Compiled
    """Whole, or as far as linking looks at it: then the rest is ``left``."""
    stands: bool
    """False when a condition of the machine left it out."""
    until: float | None = None
    """When it is to be asked again though nothing changed (seconds since the epoch); None: never."""
    left: Left | None = None

    @property
    def has_errors(self) -> bool:
        """Whether it may tell of one."""
        return _has_errors(self.compiled) if self.left is None else self.left.has_errors

    @property
    def told(self) -> Compiled:
        """Its problems, what it asks of the machine without hanging on it, and its notes."""
        return self.compiled if self.left is None else self.left.read()


def _has_errors(compiled: Compiled) -> bool:
    if not (compiled.problems or compiled.conditions):
        return False
    told = (*compiled.problems, *(condition.otherwise for condition in compiled.conditions))
    return any(problem.severity is Severity.ERROR for problem in told)


def _compiled(plain: Mapping[str, Any], tools: tuple[Tool, ...] = ()) -> Compiled:
    if not plain:
        return Compiled(tools=tools)
    convert = dict(_field_converters(_NUMBERS[Compiled]))
    return Compiled(tools=tools, **{name: convert[name](value) for name, value in plain.items()})


class Loaded(Struct, frozen=True):
    """Everything a load gave that a later one can take over."""

    stamp: bytes
    """What the folders looked like: when they look the same again, nothing has to be read."""
    units: Sequence[Kept]
    tools: Sequence[Tool]
    skills: Sequence[Skill]
    problems: Sequence[Problem]
    """Those that no single document tells."""
    programs: Mapping[str, bool]
    """Which programs were asked for, and whether they were there: other answers, another catalog."""
    until: float | None = None
    """When the first of the documents is to be asked again."""


def aliases_of(tools: Sequence[Tool]) -> list[tuple[int, str]]:
    """Further bare names, each with the place of its tool."""
    return [(number, alias) for number, tool in enumerate(tools) for alias in tool.aliases]


class Snapshot:
    """What an earlier load left behind, decoded piece by piece."""

    def __init__(self, file: _File, start: int, directory: dict[str, Any], stamp: bytes) -> None:
        self._file = file
        self._start = start
        self._directory = directory
        self.stamp = stamp
        self.programs: Mapping[str, bool] = directory["programs"]
        self.count: int = directory["count"]
        self.until: float | None = directory["until"]

    def _section(self, name: str) -> bytes:
        start, end, mark = self._directory["sections"][name]
        text = self._file.read(self._start + start, self._start + end)
        if _mark(text) != mark:
            raise Damaged(f"section {name} of the cache was changed")
        return text

    def _stack(self, name: str) -> _Stack:
        start, end, mark = self._directory["sections"][name]
        return _Stack(self._file, self._start + start, self._start + end, mark)

    @cached_property
    def keys(self) -> Sequence[str]:
        keys: list[str] = orjson.loads(self._section("keys"))
        return keys

    @cached_property
    def names(self) -> Sequence[str]:
        names: list[str] = orjson.loads(self._section("names"))
        return names

    @cached_property
    def roles(self) -> Sequence[Role]:
        return [_ROLES[letter] for letter in self._section("roles").decode("ascii")]

    @cached_property
    def aliases(self) -> Sequence[tuple[int, str]]:
        return [(number, alias) for number, alias in orjson.loads(self._section("aliases"))]

    @cached_property
    def _ends(self) -> Sequence[int]:
        ends: list[int] = orjson.loads(self._section("ends"))
        return ends

    @cached_property
    def _tools(self) -> _Stack:
        return self._stack("tools")

    def tool(self, index: int) -> Tool:
        start = self._ends[index - 1] if index else 0
        tool: Tool = decode(Tool, self._tools.piece(start, self._ends[index]))
        return tool

    @cached_property
    def skills(self) -> tuple[Skill, ...]:
        skills: tuple[Skill, ...] = decode(tuple[Skill, ...], self._section("skills"))
        return skills

    def _rows(self) -> Iterator[list[Any]]:
        """The documents, one at a time: all of them decoded are much more than their text."""
        return map(orjson.loads, self._section("units").splitlines())

    @property
    def marks(self) -> frozenset[str]:
        return frozenset(row[0] for row in self._rows())

    def told(self, *, errors_only: bool = False) -> Iterator[tuple[bool, Compiled]]:
        """Whether each document that tells of something stands, and what it tells."""
        stack = self._stack("told")
        for _, _, stands, _, _, _, left in self._rows():
            if left is not None and (not errors_only or left[2]):
                yield stands, Left(stack, *left).read()

    @property
    def units(self) -> list[Kept]:
        """The documents with their tools, as far as linking looks at them."""
        told = self._stack("told")
        return [
            Kept(
                mark,
                format,
                _compiled(at_hand, tuple([self._shelved(*card) for card in cards])),
                stands,
                until,
                None if left is None else Left(told, *left),
            )
            for mark, format, stands, cards, at_hand, until, left in self._rows()
        ]

    def _shelved(self, number: int, *card: Any) -> Tool:
        start = self._ends[number - 1] if number else 0
        return cast("Tool", Shelved(self._tools, start, self._ends[number], card))

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        problems: tuple[Problem, ...] = decode(tuple[Problem, ...], self._section("problems"))
        return problems


_ROLES: Final = {role.value[0]: role for role in Role}


# -- the file -----------------------------------------------------------------------------------------------

_MAGIC: Final = b"toolcrib cache 6\n"
_LENGTH_BYTES: Final = 8
_FILES_MAX: Final = 50
_MARK_CHARS: Final = 24
_CHUNK_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = len(_MAGIC) + _LENGTH_BYTES + _MARK_CHARS
_RECORDS_BYTES_MAX: Final = 64 << 20


class Cache:
    """The cache files of one state folder; with no folder there is nothing to find and nothing is kept."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def open(self, identity: object) -> Snapshot | None:
        """The snapshot of one set of sources and rules, if there is one that can be trusted."""
        path = self._path(identity)
        if path is None:
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return _parse(descriptor, os.path.basename(path))
        except (Damaged, OSError, ValueError, KeyError, TypeError):
            os.close(descriptor)
            return None

    def save(self, identity: object, loaded: Loaded) -> None:
        """Write the cache; where it cannot be written, the next load is simply not faster."""
        path = self._path(identity)
        if path is None:
            return
        with suppress(OSError, Damaged):
            folder = os.path.dirname(path)
            private.make_folders(folder)
            temporary = os.path.join(folder, f".new-{os.urandom(8).hex()}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.writelines(_render(loaded, os.path.basename(path)))
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
            _prune(folder)

    def _path(self, identity: object) -> str | None:
        if self._folder is None:
            return None
        return os.path.join(self._folder, _mark(repr((_code_mark(), identity)).encode("utf-8")) + ".cache")


def _prune(folder: str) -> None:
    """Keep the newest caches: every other set of sources, rules or code leaves one behind."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    for entry in found[_FILES_MAX:]:
        os.unlink(entry.path)


def _parse(descriptor: int, name: str) -> Snapshot:
    status = os.fstat(descriptor)
    # Attack: another user plants a cache that lists other tools.
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o022 or status.st_uid != os.geteuid():
        raise Damaged("not ours alone")
    head = os.pread(descriptor, _HEAD_BYTES, 0)
    if not head.startswith(_MAGIC) or len(head) != _HEAD_BYTES:
        raise Damaged("not a cache")
    length = int.from_bytes(head[len(_MAGIC) : len(_MAGIC) + _LENGTH_BYTES], "big")
    if length > status.st_size:
        raise Damaged("cut short")
    text = os.pread(descriptor, length, _HEAD_BYTES)
    if _mark(text) != head[-_MARK_CHARS:].decode("ascii", "replace"):
        raise Damaged("the directory was changed")
    directory = orjson.loads(text)
    if directory["name"] != name:  # Attack: a cache of laxer rules, put in the place of a stricter one's.
        raise Damaged("the cache of something else")
    stamp = os.pread(descriptor, directory["stamp"], _HEAD_BYTES + length)
    if not {"programs", "count", "until", "sections"} <= directory.keys():
        raise Damaged("the directory is not whole")  # from here on the descriptor belongs to the snapshot
    return Snapshot(_File(descriptor), _HEAD_BYTES + length + len(stamp), directory, stamp)


def _render(loaded: Loaded, name: str) -> list[bytes]:
    # First those of the catalog, then those that linking left out: a document that is linked anew has all.
    tools = {id(tool): tool for tool in loaded.tools}
    tools |= {
        id(tool): tool for kept in loaded.units for tool in kept.compiled.tools if id(tool) not in tools
    }
    numbers = {identity: number for number, identity in enumerate(tools)}
    # What is copied as it lies gets a new digest: it must still be what the old one was of.
    stacks = {found._stack for tool in tools.values() if (found := shelved(tool)) is not None}
    for stack in stacks | {kept.left.stack for kept in loaded.units if kept.left is not None}:
        stack.check()
    records: list[bytes] = []
    ends: list[int] = []
    total = 0
    for tool in tools.values():
        records.append(encode(tool) if (found := shelved(tool)) is None else found.text())
        total += len(records[-1])
        ends.append(total)
        if total > _RECORDS_BYTES_MAX:
            # Attack: what a document's tools share (an allowlist, keywords) is written with each of them.
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    units: list[bytes] = []
    told: list[bytes] = []
    at = 0
    for kept in loaded.units:
        text = _told(kept)
        left = (at, at + len(text), kept.has_errors) if text else None
        at += len(text)
        told.append(text)
        units.append(_unit(kept, numbers, left))
    sections = {
        "keys": orjson.dumps([tool.key for tool in loaded.tools]),
        "names": orjson.dumps([tool.name for tool in loaded.tools]),
        "aliases": orjson.dumps(aliases_of(loaded.tools)),
        "roles": "".join(tool.role.value[0] for tool in loaded.tools).encode("ascii"),
        "ends": orjson.dumps(ends),
        "skills": encode(tuple(loaded.skills)),
        "problems": encode(tuple(loaded.problems)),
        "units": b"\n".join(units),
        "told": b"".join(told),
        "tools": b"".join(records),
    }
    at = 0
    listed = {}
    for section, text in sections.items():
        listed[section] = (at, at + len(text), _mark(text))
        at += len(text)
    directory = orjson.dumps(
        {
            "name": name,
            "count": len(loaded.tools),
            "programs": dict(loaded.programs),
            "stamp": len(loaded.stamp),
            "until": loaded.until,
            "sections": listed,
        }
    )
    head = _MAGIC + len(directory).to_bytes(_LENGTH_BYTES, "big") + _mark(directory).encode("ascii")
    return [head, directory, loaded.stamp, *sections.values()]


def _unit(kept: Kept, numbers: Mapping[int, int], left: tuple[int, int, bool] | None) -> bytes:
    """A document as far as linking looks at it."""
    cards = [(numbers[id(tool)], *_card(tool)) for tool in kept.compiled.tools]
    deciding = tuple(condition for condition in kept.compiled.conditions if condition.drops)
    at_hand = _named(conditions=deciding, skills=kept.compiled.skills, broken=kept.compiled.broken)
    return encode([kept.mark, kept.format, kept.stands, cards, at_hand, kept.until, left])


def _told(kept: Kept) -> bytes:
    """What else it tells; empty: nothing."""
    if kept.left is not None:
        return kept.left.text()
    compiled = kept.compiled
    asking = tuple(condition for condition in compiled.conditions if not condition.drops)
    rest = _named(problems=compiled.problems, conditions=asking, notes=compiled.notes)
    return encode(rest) if rest else b""


def _named(**values: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    return {name: value for name, value in values.items() if value}


def _mark(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=_MARK_CHARS // 2).hexdigest()


@cache
def _code_mark() -> str:
    """Which code wrote a cache: another version of a format would compile the same file to something else."""
    folder = os.path.dirname(os.path.dirname(__file__))
    seen: list[object] = [__version__, sys.version]
    for room in ("", "formats", "catalog"):
        with os.scandir(os.path.join(folder, room)) as entries:
            for entry in sorted(entries, key=attrgetter("name")):
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    seen += (entry.name, status.st_size, status.st_mtime_ns)
    return _mark(orjson.dumps(seen))
