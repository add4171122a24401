"""From what a function returned to what a model may be given: JSON data, text, or content blocks.

Nothing of the host's own objects goes on: data is a copy, made of plain JSON. What has no JSON form is
refused, because its ``str`` would tell a model addresses in memory and nothing it could use.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

import orjson

from toolcrib import jsontext
from toolcrib.jsontext import JsonValue
from toolcrib.model import AudioBlock, Block, EmbeddedResource, ImageBlock, ResourceLink, TextBlock

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_NON_STR_KEYS
BLOCKS: Final = (TextBlock, ImageBlock, AudioBlock, ResourceLink, EmbeddedResource)


class Unwritable(Exception):
    """A value without a JSON form."""


def as_bytes(value: object) -> bytes:
    """A value as JSON. Raises Unwritable."""
    try:
        return orjson.dumps(value, default=_unfolded, option=_OPTIONS)
    except TypeError as error:  # also what orjson has for: too deep, too large a number, no text
        if isinstance(error.__cause__, Unwritable):
            raise error.__cause__ from None
    try:
        return json.dumps(_plain(value, 0), ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "replace"
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise Unwritable(f"its result has no JSON form: {error}") from None


def copied(value: object) -> tuple[JsonValue, int]:
    """A copy of a value, made of plain JSON, and how many bytes it has as text. Raises Unwritable."""
    try:
        body = orjson.dumps(value, default=_unfolded, option=_OPTIONS)
    except TypeError:
        body = as_bytes(value)
        return jsontext.loads_own(body), len(body)
    return orjson.loads(body), len(body)


def as_data(value: object) -> JsonValue:
    """A copy of a value, made of plain JSON. Raises Unwritable."""
    return value if value is None or type(value) in (str, int, bool) else copied(value)[0]


def as_blocks(value: object) -> tuple[Block, ...]:
    """The content blocks that a value is made of; none where it is data."""
    if isinstance(value, BLOCKS):
        return (value,)
    if isinstance(value, (list, tuple)) and any(isinstance(item, BLOCKS) for item in value):
        if all(isinstance(item, (*BLOCKS, str)) for item in value):
            return tuple(TextBlock(text=item) if isinstance(item, str) else item for item in value)
        raise Unwritable(
            "its result mixes content blocks with other values: return blocks and texts, or data"
        )
    return ()


def bytes_of(blocks: tuple[Block, ...]) -> int:
    """How much there is in blocks, about."""
    return sum(
        len(part)
        for block in blocks
        for part in (getattr(block, "text", None), getattr(block, "data", None))
        if part is not None
    )


def _unfolded(value: object) -> Any:
    """One step towards JSON, for what orjson does not know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump = getattr(type(value), "model_dump", None)
    if callable(dump):
        try:
            return dump(value, mode="json")
        except Exception as error:  # whatever the object's own code raises
            name = type(value).__name__
            text = f"its result holds a {name}, which cannot be written as JSON: {type(error).__name__}"
            raise Unwritable(text) from error
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        return dict(zip(names, value, strict=True)) if names else list(value)
    if isinstance(value, (Set, frozenset)):
        return _sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (Decimal, PurePath)):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    name = type(value).__name__
    raise Unwritable(f"its result holds a {name}, which has no JSON form") from None


def _sorted(value: Any) -> list[Any]:
    """Sets have no order, and results should not change from run to run."""
    try:
        return sorted(value)
    except TypeError:
        return list(value)


def _plain(value: object, depth: int) -> Any:
    """The slow way: integers beyond 64 bits, texts that are none, keys of any type."""
    if depth > jsontext.DEPTH_MAX:
        raise Unwritable(
            f"its result is nested more than {jsontext.DEPTH_MAX} levels deep, or contains itself"
        )
    if isinstance(value, enum.Enum):
        return _plain(value.value, depth + 1)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    return _plain(_unfolded(value), depth + 1)


def _key(key: object) -> str:
    plain = _plain(key, 0)
    return plain if isinstance(plain, str) else json.dumps(plain)
