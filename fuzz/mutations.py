"""Changes to declarations: bytes, tokens and, where the text is JSON or YAML, values.

Everything follows from the random generator that comes in, so an input can be made again from its number.
Nothing here knows what a format means.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import yaml
from declarations import Declaration

from toolcrib import jsontext

CONTENT_BYTES_MAX = 256 * 1024

FRAGMENTS: tuple[bytes, ...] = (
    # text that readers disagree about
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"\\udc00\\ud800",
    b"\\u0000", b"\\x00",
    b"\x1b[31m", b"\x7f", b"\x85", b"\xe2\x80\xa8", b"\xe2\x80\xae", b"\xf0\x9f\x98\x80", b"\r", b"\r\n",
    b"\t", b"\x0c",
    # depth and length
    b"[" * 300, b"{" * 300, b'{"a":' * 200, b"(" * 300, b"- " * 300, b"-" * 500, b"not " * 200,
    b"lambda: " * 100,
    b"~" * 200, b"*" * 100, b"1+" * 300, b".a" * 400, b"A" * 3000, b"a " * 2000, b"\n" * 3000, b" " * 3000,
    # numbers
    b"9" * 5000, b"1e999", b"-0", b"0x" + b"f" * 5000, b"NaN", b"-Infinity", b".inf", b"1_000", b"1:30:00",
    b"0777",
    # strings, comments and blocks that do not end
    b"'", b'"', b'"""', b"`", b"/*", b"//", b"#", b"<!--", b"\\", b"{", b"}", b"[", b"]", b"|\n", b">-\n",
    b"`${x}`", b"=/[",
    # YAML
    b"&a [*a, *a]", b"*a", b"<<: *x", b"<<: [{}]", b"!!python/object:os.system x", b"!!binary aGk=",
    b"!t x", b"? x",
    b"%TAG ! tag:x,2000:\n---\n", b"---\n", b"\n---\n", b"...\n", b": ", b"- ", b"? [a]\n: b",
    # names and references that mean something to somebody
    b"__proto__", b"constructor", b"${HOME}", b"{project_path}", b"../../x", b"/etc/passwd", b"-n", b"--",
    b"$(x)", b"`x`",
    b'"$ref": "#"', b'"$ref": "http://x/y"', b'"$ref": "#/$defs/a/b"', b'"$id": "a"', b'"$schema": "x"',
    b'"$dynamicRef": "#a"',
    # patterns
    b"^(a+)+$", b"(?=x)", b"(" * 200, b"a{1,99}{1,99}", b"\\\\w{900}", b'"pattern": "["',
    b'"pattern": "[\\\\w\\\\s]{900}"',
    # programs
    b"f'{'{x}'}'", b"f'{x!r:>{y}}'", b"@x\n", b"async ", b"await x", b"yield", b"import os\n",
    b"global x\n", b"x: int = 1\n",
    b"if 1:\n  pass\n", b"def execute(", b"__tool_type__ = x()\n", b"export default ", b"export const x = ",
    b" as const",
    b"module.exports.x = ", b"declare -r ", b"#!/bin/sh\n", b"# rye:signed:a:b:c:d\n", b"# coding: utf-7\n",
    # values
    b"null", b"None", b"true", b"{}", b"[]", b'""', b",", b",,", b":",
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, 10**30, "", " ", "x", "../x", "/x", "-n", "a\nb", "\u202e",
    "\x1b[0m", "a" * 300,
    [], [[]], [None], ["x", 1], ["x"] * 50, {}, {"a": {}}, {"": 1}, {"__proto__": {}}, {"type": "object"},
    {"type": ["string"]},
    {"$ref": "#"}, {"$ref": "http://x/"}, {"$defs": {"a": {"$ref": "#/$defs/a"}}}, {"pattern": "["},
    {"pattern": "(a+)+$"},
    {"enum": []}, {"const": {"a": [1]}}, {"required": ["x", "x"]}, {"anyOf": [{}, False]},
    {"properties": {"a b": True}},
    {"minimum": "1"}, {"default": {"a": 1}}, "object", "string", "str", "always", "keyword", "flag",
    "python", "1.0.0", "${A}",
)  # fmt: skip

KEYS = (
    "", "name", "Name", "NAME", "tools", "command", "group", "allowlist", "execution", "parameters",
    "properties", "required",
    "type", "description", "$ref", "__proto__", "constructor", "kind", "args", "tool_type", "executor_id",
    "selection", "metadata",
    "\u202e", "a.b", "a/b", "~", "0", "x" * 300,
)  # fmt: skip


PLACES_MAX = 20_000


def mutated(seed: Declaration, others: Sequence[Declaration], rng: random.Random) -> Declaration:
    """``seed`` with one to four changes, parts of ``others`` among them."""
    names = list(seed.files)
    name = names[0] if rng.random() < 0.8 else rng.choice(names)
    content = seed.files[name]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        other = rng.choice(list(rng.choice(others).files.values()))
        change = rng.random()
        changed = _value(name, content, rng) if change < 0.45 else None
        if changed is None and change < 0.65:
            changed = _tokens(content, other, rng)
        content = (changed if changed is not None else _bytes(content, other, rng))[:CONTENT_BYTES_MAX]
    return Declaration(seed.format, {**seed.files, name: content})


# -- bytes --------------------------------------------------------------------------------------------------


def _bytes(content: bytes, other: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    end = min(len(content), at + rng.choice((0, 1, 2, 8, 64)))
    match rng.randrange(9):
        case 0:
            return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
        case 1 if content:
            flipped = bytearray(content)
            flipped[at % len(content)] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 2 | 3:
            return content[:at] + rng.choice(FRAGMENTS) + content[end:]
        case 4:
            return content[:at]
        case 5:
            return content[:at] + content[end:]
        case 6:
            return content[:at] + content[at:end] * rng.choice((2, 50, 500)) + content[end:]
        case 7:
            start = rng.randrange(len(other) + 1)
            return content[:at] + other[start : start + rng.choice((20, 200, 2000))] + content[end:]
        case _:
            lines = content.split(b"\n")
            first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[first], lines[second] = lines[second], lines[first]
            return b"\n".join(lines)


# -- tokens -------------------------------------------------------------------------------------------------

_TOKEN = re.compile(rb"\w+|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|\n[ \t]*|[ \t]+|[^\w\s]|.", re.DOTALL)


def _tokens(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Words, strings, signs and line beginnings dropped, doubled, swapped, or taken from elsewhere."""
    tokens = _TOKEN.findall(content)
    if not tokens:
        return rng.choice(FRAGMENTS)
    theirs = _TOKEN.findall(other) or tokens
    for _ in range(rng.choice((1, 2, 5))):
        at = rng.randrange(len(tokens))
        match rng.randrange(6):
            case 0 if len(tokens) > 1:
                del tokens[at]
            case 1:
                tokens.insert(at, tokens[at])
            case 2:
                second = rng.randrange(len(tokens))
                tokens[at], tokens[second] = tokens[second], tokens[at]
            case 3:
                tokens[at] = rng.choice(theirs)
            case 4:
                tokens[at] = rng.choice(tokens)
            case _:
                tokens.insert(at, rng.choice(theirs))
    return b"".join(tokens)


# -- values -------------------------------------------------------------------------------------------------


def _value(name: str, content: bytes, rng: random.Random) -> bytes | None:
    """Change one place of a JSON or YAML value; None where the content is neither."""
    before, front, after = b"", content, b""
    if name.endswith("SKILL.md"):
        parts = content.split(b"---\n", 2)
        if len(parts) < 3:
            return None
        before, front, after = parts[0] + b"---\n", parts[1], b"---\n" + parts[2]
    is_yaml = name.endswith((".yaml", ".yml", "SKILL.md"))
    try:
        root = yaml.safe_load(front) if is_yaml else json.loads(front)
        changed = _changed(root, rng)
        if is_yaml:
            return (
                before
                + yaml.safe_dump(changed, sort_keys=False, allow_unicode=rng.random() < 0.5).encode()
                + after
            )
        return json.dumps(changed, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 2))).encode()
    except (ValueError, TypeError, RecursionError, yaml.YAMLError, AttributeError):
        return None  # not JSON, or it holds itself now


def _changed(root: Any, rng: random.Random) -> Any:
    places = list(islice(jsontext.walk(root), PLACES_MAX + 1))
    if len(places) > PLACES_MAX:  # a seed that is a bomb: written out it would be our own undoing
        return root
    pointer, value = rng.choice(places)
    if not pointer:
        return rng.choice((*VALUES, [root], {"tools": root}, {"a": root}))
    holder, last = jsontext.at(root, pointer[:-1]), pointer[-1]
    match rng.randrange(9):
        case 0 | 1:
            holder[last] = rng.choice(VALUES)
        case 2:
            holder[last] = jsontext.at(root, rng.choice(places)[0])
        case 3 if isinstance(holder, dict):
            renamed = rng.choice((*KEYS, f"{last}x", str(last).upper(), str(last).replace("_", "-")))
            items = [(renamed if key == last else key, item) for key, item in holder.items()]
            holder.clear()
            holder.update(items)
        case 4:
            del holder[last]
        case 5:
            if isinstance(holder, list):
                holder.extend([value] * rng.choice((1, 30, 300)))
            else:
                holder[rng.choice(KEYS)] = value
        case 6:
            holder[last] = _retyped(value, rng)
        case 7:
            for _ in range(rng.choice((1, 5, 70, 120))):
                value = [value] if rng.random() < 0.5 else {rng.choice(("a", "properties", "items")): value}
            holder[last] = value
        case _:
            second, other = rng.choice(places)
            if second and second[: len(pointer)] != pointer and pointer[: len(second)] != second:
                jsontext.at(root, second[:-1])[second[-1]] = value
                holder[last] = other
    return root


def _retyped(value: Any, rng: random.Random) -> Any:
    if isinstance(value, Mapping):
        return rng.choice((list(value), list(value.items()), json.dumps(value), [value]))
    if isinstance(value, list):
        return rng.choice((dict.fromkeys(map(str, value)), {"items": value}, str(value), value[:1]))
    return rng.choice((str(value), [value], {"value": value}, {str(value): value}, not value))
