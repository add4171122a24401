"""The warm cache: compiled declarations in one file, so that unchanged files are not read again.

A cache is only ever a shortcut. It lives in the user's state folder, belongs to the user alone and is checked
by digest; one that is damaged, foreign, from other code or writable by others is thrown away and rebuilt,
never trusted. Records stay encoded until somebody asks for them, because most loaded tools are never looked
at: a warm start is a look at the folders, one file read and one comparison.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, Final

import orjson

from toolwright import __version__, jsontext, model
from toolwright.model import Compiled, Condition, Problem, Skill, Tool, Unit

_MAGIC: Final = b"toolwright cache 1\n"
_LENGTH: Final = 8
_FILE_BYTES_MAX: Final = 1 << 29

# -- frozen values as JSON ----------------------------------------------------------------------------------
# A scalar stands for itself; anything else is an array that begins with a number: the class of a frozen value
# (followed by its fields that are not the default), or one of these.

_TUPLE, _LIST, _MAPPING, _BYTES, _ENUM = -1, -2, -3, -4, -5
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def _types(base: type) -> list[type]:
    found = (getattr(model, name) for name in sorted(vars(model)))
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, base)]


_CLASSES: Final = [kind for kind in _types(object) if is_dataclass(kind)]
_ENUMS: Final = _types(Enum)


@dataclass(frozen=True, slots=True)
class _Layout:
    number: int
    names: tuple[str, ...]
    values: attrgetter[Any]
    defaults: tuple[object, ...]


def _layout(number: int, kind: Any) -> _Layout:
    members = fields(kind)
    names = tuple(member.name for member in members)
    # Two names at least, so that the getter always gives a tuple.
    getter: attrgetter[Any] = attrgetter(*names, "__class__")
    return _Layout(number, names, getter, tuple(member.default for member in members))


_LAYOUTS: Final = {kind: _layout(number, kind) for number, kind in enumerate(_CLASSES)}
_ENUM_NUMBERS: Final = {kind: number for number, kind in enumerate(_ENUMS)}


def encode(value: object) -> bytes:
    return jsontext.compact(_plain(value))


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    layout = _LAYOUTS.get(kind)
    if layout is not None:
        kept = {}
        for name, item, default in zip(layout.names, layout.values(value), layout.defaults, strict=False):
            if item is not default:
                kept[name] = item if type(item) in _SCALARS else _plain(item)
        return [layout.number, kept]
    if kind is tuple:
        return [_TUPLE, *map(_plain, value)]
    if kind is list:
        return [_LIST, *map(_plain, value)]
    if kind is dict:
        return [_MAPPING, {key: _plain(item) for key, item in value.items()}]
    if kind is bytes:
        return [_BYTES, value.decode("utf-8")]
    return [_ENUM, _ENUM_NUMBERS[kind], value.value]


def decode(text: bytes) -> Any:
    return _value(jsontext.loads_own(text))


def _value(plain: Any) -> Any:
    if type(plain) is not list:
        return plain
    tag = plain[0]
    if tag >= 0:
        return _CLASSES[tag](**{name: _value(item) for name, item in plain[1].items()})
    if tag == _TUPLE:
        return tuple(map(_value, plain[1:]))
    if tag == _LIST:
        return list(map(_value, plain[1:]))
    if tag == _MAPPING:
        return {key: _value(item) for key, item in plain[1].items()}
    if tag == _BYTES:
        return plain[1].encode("utf-8")
    return _ENUMS[plain[1]](plain[2])


# -- the file -----------------------------------------------------------------------------------------------


class Stale(Exception):
    """The cache speaks of another state of the machine."""


class Damaged(Stale):
    """The cache is not what we wrote."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything a load gave that a later one can take over."""

    stamp: Sequence[object]
    """What the folders looked like: when it is the same again, nothing has to be read."""
    units: Sequence[tuple[str | None, Unit]]
    tools: Sequence[Tool]
    skills: Sequence[Skill]
    problems: Sequence[Problem]
    conditions: Sequence[Condition]
    programs: Mapping[str, bool]
    """Which programs were asked for, and whether they were there: other answers, another catalog."""


class Snapshot:
    """What an earlier load left behind, decoded piece by piece."""

    def __init__(self, header: dict[str, Any], stamp: bytes, records: bytes) -> None:
        self._header = header
        self._records = records
        self.stamp = stamp
        self.keys: Sequence[str] = header["keys"]
        self.names: Sequence[str] = header["names"]
        self.roles: Sequence[str] = header["roles"]
        self.programs: Mapping[str, bool] = header["programs"]
        self._shelf: list[int] = header["shelf"]

    def tool(self, index: int) -> Tool:
        found = self._record(self._shelf[index])
        assert isinstance(found, Tool)
        return found

    @property
    def skills(self) -> tuple[Skill, ...]:
        return tuple(self._record(self._header["skills"]))

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._record(self._header["problems"]))

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return tuple(self._record(self._header["conditions"]))

    def units(self, marks: Sequence[str]) -> dict[str, tuple[str | None, Unit]]:
        """The compiled documents that were made from candidates of these marks."""
        wanted = frozenset(marks)
        return {
            mark: (format, self._unit(rest, tools))
            for mark, format, rest, tools in self._header["units"]
            if mark in wanted
        }

    def _unit(self, rest: int, tools: Sequence[int]) -> Unit:
        unit: Unit = self._record(rest)
        if not tools:
            return unit
        compiled = unit.compiled
        return Unit(
            path=unit.path,
            item=unit.item,
            space=unit.space,
            compiled=Compiled(
                tools=tuple(self._record(number) for number in tools),
                problems=compiled.problems,
                conditions=compiled.conditions,
                skills=compiled.skills,
                notes=compiled.notes,
            ),
        )

    def _record(self, number: int) -> Any:
        start, end = self._header["offsets"][number : number + 2]
        text = self._records[start:end]
        if _mark(text) != self._header["marks"][number]:
            raise Damaged("a record of the cache was changed")
        return decode(text)


def _mark(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=12).hexdigest()


@cache
def _code_mark() -> str:
    """Which code wrote a cache: another version of a format would compile the same file to something else."""
    folder = os.path.dirname(os.path.dirname(__file__))
    marks: list[object] = [__version__]
    for room in ("", "formats", "catalog"):
        with os.scandir(os.path.join(folder, room)) as entries:
            for entry in sorted(entries, key=attrgetter("name")):
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    marks += (entry.name, status.st_size, status.st_mtime_ns)
    return _mark(orjson.dumps(marks))


class Cache:
    """The cache files of one state folder; with no folder there is nothing to find and nothing is kept."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def path(self, identity: object) -> str | None:
        """Where the cache of one set of sources and rules lies."""
        if self._folder is None:
            return None
        return os.path.join(self._folder, _mark(orjson.dumps([_code_mark(), repr(identity)])) + ".cache")

    def open(self, identity: object) -> Snapshot | None:
        path = self.path(identity)
        if path is None:
            return None
        try:
            content = _read_own(path)
            if content is None:
                return None
            return _parse(content)
        except (Damaged, OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, identity: object, loaded: Loaded) -> None:
        """Write the cache; where it cannot be written, the next load is simply not faster."""
        path = self.path(identity)
        if path is None:
            return
        with suppress(OSError):
            folder = os.path.dirname(path)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_render(loaded))
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise


def _read_own(path: str) -> bytes | None:
    """The bytes of a file that is ours alone. Attack: another user plants a cache that lists other tools."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o022 or status.st_uid != os.geteuid():
            return None
        if status.st_size > _FILE_BYTES_MAX:
            return None
        return file.read()


def _parse(content: bytes) -> Snapshot:
    view = content
    if not view.startswith(_MAGIC):
        raise Damaged("not a cache")
    at = len(_MAGIC)
    digest, at = view[at : at + 32], at + 32
    header_end = int.from_bytes(view[at : at + _LENGTH], "big") + at + 2 * _LENGTH
    stamp_end = int.from_bytes(view[at + _LENGTH : at + 2 * _LENGTH], "big") + header_end
    if hashlib.sha256(view[at:stamp_end]).digest() != digest:
        raise Damaged("the cache was changed")
    header = orjson.loads(view[at + 2 * _LENGTH : header_end])
    return Snapshot(header, view[header_end:stamp_end], view[stamp_end:])


def _render(loaded: Loaded) -> bytes:
    parts: list[bytes] = []
    numbers: dict[int, int] = {}

    def record(value: object) -> int:
        number = numbers.get(id(value))
        if number is None:
            number = numbers[id(value)] = len(parts)
            parts.append(encode(value))
        return number

    units = []
    for mark, (format, unit) in zip(unit_marks(loaded.stamp), loaded.units, strict=True):
        tools = [record(tool) for tool in unit.compiled.tools]
        compiled = unit.compiled
        bare = Unit(
            path=unit.path,
            item=unit.item,
            space=unit.space,
            compiled=Compiled(
                problems=compiled.problems,
                conditions=compiled.conditions,
                skills=compiled.skills,
                notes=compiled.notes,
            ),
        )
        parts.append(encode(bare))
        units.append([mark, format, len(parts) - 1, tools])
    header: dict[str, Any] = {
        "keys": [tool.key for tool in loaded.tools],
        "names": [tool.name for tool in loaded.tools],
        "roles": [tool.role.value for tool in loaded.tools],
        "shelf": [record(tool) for tool in loaded.tools],
        "units": units,
        "programs": dict(loaded.programs),
    }
    for name in ("skills", "problems", "conditions"):
        parts.append(encode(tuple(getattr(loaded, name))))
        header[name] = len(parts) - 1
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    header["offsets"] = offsets
    header["marks"] = [_mark(part) for part in parts]
    header_text = orjson.dumps(header)
    stamp = stamp_text(loaded.stamp)
    body = (
        len(header_text).to_bytes(_LENGTH, "big") + len(stamp).to_bytes(_LENGTH, "big") + header_text + stamp
    )
    return b"".join((_MAGIC, hashlib.sha256(body).digest(), body, *parts))


def stamp_text(stamp: Sequence[object]) -> bytes:
    return orjson.dumps(stamp)


def unit_marks(stamp: Sequence[object]) -> list[str]:
    """One digest for each candidate's part of a stamp."""
    return [_mark(orjson.dumps(part)) for part in stamp]

