"""A JSON Schema as a form that a person can fill in: fields as values, which a template draws.

Pure: a schema goes in, fields come out. Nothing here checks an argument. The engine does that for every call;
a form only helps. What a field cannot say (alternatives, maps, tuples, anything deep) is asked for as JSON,
so every schema has a form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from toolcrib.jsontext import JsonObject, JsonValue

DEPTH_MAX: Final = 4
"""Groups within groups; deeper ones are asked for as JSON."""
FIELDS_MAX: Final = 200
"""Attack: a schema with ten thousand parameters, so that a browser stands still. JSON takes the others."""
OPTIONS_MAX: Final = 500
PATTERN_CHARS_MAX: Final = 100
_REFS_MAX: Final = 16
_LONG_NAMES: Final = (
    "text", "content", "contents", "body", "code", "message", "prompt", "script", "markdown", "html", "input",
    "description", "summary", "note",
)  # fmt: skip
_INPUT_TYPES: Final = {
    "date": "date",
    "email": "email",
    "uri": "url",
    "url": "url",
    "time": "text",
    "date-time": "text",
    "password": "password",
}
_LONG_CHARS: Final = 200
_TOLD_CHARS_MAX: Final = 2000
_SKELETON_CHARS_MAX: Final = 200
_GREEDY: Final = re.compile(r"[*+}]")
_NESTED: Final = re.compile(r"\)[*+?{]")


class Control(StrEnum):
    """How a field is filled in."""

    TEXT = "text"
    LONG = "long"
    """Text of several lines."""
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    LIST = "list"
    """Repeatable fields, all alike."""
    GROUP = "group"
    """An object's own fields."""
    JSON = "json"
    """Anything else, as JSON."""


class Field(Struct, frozen=True, kw_only=True):
    """One argument, as a form asks for it."""

    id: str
    """From its place in the form, never from its name, which is hostile."""
    name: str
    control: Control
    title: str = ""
    description: str = ""
    kind: str = ""
    """The type in words."""
    required: bool = False
    insisted: bool = False
    """Required, and so is everything around it: a browser may insist."""
    default: str | None = None
    """JSON text."""
    example: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """JSON text and label of each."""
    input_type: str = "text"
    attributes: tuple[tuple[str, str], ...] = ()
    """What a browser may check: min, max, step, minlength, maxlength, pattern."""
    inside: tuple[Field, ...] = ()
    item: Field | None = None
    items_min: int = 0
    items_max: int | None = None


class Form(Struct, frozen=True, kw_only=True):
    fields: tuple[Field, ...] = ()
    whole: bool = True
    """Whether the fields can say all that the schema knows of; else some only the JSON can."""


def form(schema: JsonObject | None) -> Form:
    """The form of a tool's parameters."""
    maker = _Maker(schema or {})
    top = maker.meant(schema or {})
    if top is None or not isinstance(top.get("properties", {}), dict):
        return Form(whole=False)
    fields = tuple(maker.fields(top, "f", depth=0, insisted=True))
    return Form(fields=fields, whole=not maker.left_out and not _more_than_fields(top))


def exact(value: JsonValue) -> str:
    """JSON text in ASCII: what is invisible in it is an escape, and it reads back as it was."""
    return json.dumps(value, separators=(",", ":")).replace("\x7f", "\\u007f")


class _Maker:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._made = 0
        self.left_out = False

    def fields(self, schema: Mapping[str, Any], id: str, *, depth: int, insisted: bool) -> Iterator[Field]:
        properties = schema.get("properties")
        required = schema.get("required")
        names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        for number, (name, inner) in enumerate((properties if isinstance(properties, dict) else {}).items()):
            if self._made >= FIELDS_MAX:
                self.left_out = True
                return
            is_required = name in names
            made = self.field(name, inner, f"{id}-{number}", depth=depth, insisted=insisted and is_required)
            yield replace(made, required=is_required)

    def field(self, name: str, schema: JsonValue, id: str, *, depth: int, insisted: bool) -> Field:
        self._made += 1
        meant = self.meant(schema)
        if meant is None:
            return Field(id=id, name=name, control=Control.JSON, kind="anything", insisted=insisted)
        told = Field(
            id=id,
            name=name,
            control=Control.JSON,
            title=_text(meant.get("title")),
            description=_text(meant.get("description")),
            kind=type_text(meant),
            insisted=insisted,
            default=exact(meant["default"]) if "default" in meant else None,
            example=_example(meant),
        )
        options = _options(meant)
        if options is not None:
            return replace(told, control=Control.CHOICE, options=options)
        kind = _type(meant)
        if kind == "boolean":
            options = (("true", "true"), ("false", "false"))
            return replace(told, control=Control.BOOLEAN, options=options)
        if kind in ("number", "integer"):
            control = Control.INTEGER if kind == "integer" else Control.NUMBER
            return replace(told, control=control, input_type="number", attributes=tuple(_bounds(meant, kind)))
        if kind == "string":
            return _string(told, meant)
        if kind == "array":
            return self._array(told, meant, depth)
        properties = meant.get("properties")
        if kind == "object" and isinstance(properties, dict) and properties and depth < DEPTH_MAX:
            inside = tuple(self.fields(meant, id, depth=depth + 1, insisted=insisted))
            if not _more_than_fields(meant) and len(inside) == len(properties):
                return replace(told, control=Control.GROUP, inside=inside, default=None)
        return replace(told, example=told.example or self._shape(meant))

    def _shape(self, meant: Mapping[str, Any]) -> str:
        found = self.skeleton(dict(meant))
        return "" if found is None else exact(found)[:_SKELETON_CHARS_MAX]

    def skeleton(self, schema: JsonValue, depth: int = 0) -> JsonValue:
        """What a value might look like: only to show the way, never sent."""
        meant = self.meant(schema)
        if meant is None:
            return None
        options = _options(meant)
        if options:
            return json.loads(options[0][0])
        kind = _type(meant)
        if kind == "array":
            return [self.skeleton(meant.get("items", True), depth + 1)] if depth < 3 else []
        if kind != "object":
            return {"string": "...", "integer": 0, "number": 0, "boolean": False}.get(kind)
        properties, required = meant.get("properties"), meant.get("required")
        if not isinstance(properties, dict) or depth >= 3:
            return {}
        wanted = [name for name in properties if not isinstance(required, list) or name in required]
        return {name: self.skeleton(properties[name], depth + 1) for name in wanted[:8]}

    def _array(self, told: Field, meant: Mapping[str, Any], depth: int) -> Field:
        items = self.meant(meant.get("items", True))
        as_json = replace(told, example=told.example or self._shape(meant))
        if items is None or "prefixItems" in meant or depth >= DEPTH_MAX:
            return as_json
        item = self.field("", items, f"{told.id}-item", depth=DEPTH_MAX, insisted=False)
        if item.control in (Control.JSON, Control.GROUP, Control.LIST):
            return as_json
        least, most = meant.get("minItems"), meant.get("maxItems")
        return replace(
            told,
            control=Control.LIST,
            item=item,
            items_min=min(least, 50) if _is_count(least) else 0,
            items_max=most if _is_count(most) else None,
        )

    def meant(self, schema: JsonValue) -> dict[str, Any] | None:
        """A schema with local references and the wrapping of optional values taken off; None: anything."""
        for _ in range(_REFS_MAX):
            if not isinstance(schema, dict):
                return None
            reference = schema.get("$ref")
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            if isinstance(reference, str):
                target = self._at(reference)
                if not isinstance(target, dict):
                    return None
                schema = {**target, **rest}
                continue
            wrapped = _wrapped(schema)
            if wrapped is None:
                return schema
            schema = wrapped
        return None  # Attack: references in a circle

    def _at(self, reference: str) -> JsonValue:
        if not reference.startswith("#"):
            return None
        found: JsonValue = self._root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                return None
            found = found[name]
        return found


def _wrapped(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """What stands inside a choice between one thing and null, or inside a conjunction of one."""
    for keyword in ("anyOf", "oneOf", "allOf"):
        among = schema.get(keyword)
        if not isinstance(among, list):
            continue
        others = [each for each in among if each != {"type": "null"}]
        is_optional = keyword != "allOf" and len(others) == 1 < len(among)
        if (is_optional or len(among) == 1) and len(others) == 1 and isinstance(others[0], dict):
            rest = {key: value for key, value in schema.items() if key != keyword}
            return {**others[0], **rest}
    return None


def _type(meant: Mapping[str, Any]) -> str:
    kind = meant.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind is None and isinstance(meant.get("properties"), dict):
        kind = "object"
    return kind if isinstance(kind, str) and not _has_alternatives(meant) else ""


def _has_alternatives(meant: Mapping[str, Any]) -> bool:
    return any(keyword in meant for keyword in ("anyOf", "oneOf", "allOf", "not", "if"))


def _more_than_fields(meant: Mapping[str, Any]) -> bool:
    """Whether an object may have members, or must keep rules, that its fields do not show."""
    more = meant.get("additionalProperties", False)
    return isinstance(more, dict) or "patternProperties" in meant or _has_alternatives(meant)


def _options(meant: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    if "const" in meant:
        return ((exact(meant["const"]), _label(meant["const"])),)
    among = meant.get("enum")
    if isinstance(among, list) and 0 < len(among) <= OPTIONS_MAX:
        return tuple((exact(value), _label(value)) for value in among)
    among = meant.get("oneOf")
    if isinstance(among, list) and 0 < len(among) <= OPTIONS_MAX:
        named = [each for each in among if isinstance(each, dict) and "const" in each]
        if len(named) == len(among):
            return tuple(
                (exact(each["const"]), _text(each.get("title")) or _label(each["const"])) for each in named
            )
    return None


def _label(value: JsonValue) -> str:
    return value[:_TOLD_CHARS_MAX] if isinstance(value, str) and value else exact(value)[:_TOLD_CHARS_MAX]


def _string(told: Field, meant: Mapping[str, Any]) -> Field:
    attributes = []
    for keyword, attribute in (("minLength", "minlength"), ("maxLength", "maxlength")):
        if _is_count(meant.get(keyword)):
            attributes.append((attribute, str(meant[keyword])))
    default = meant.get("default")
    longest = meant.get("maxLength")
    is_short = _is_count(longest) and longest <= _LONG_CHARS
    is_named_long = told.name.lower().rpartition("_")[2] in _LONG_NAMES
    format = meant.get("format")
    if (is_named_long and not is_short) or (isinstance(default, str) and "\n" in default):
        return replace(told, control=Control.LONG, attributes=tuple(attributes))
    pattern = browser_pattern(meant.get("pattern"))
    if pattern is not None:
        attributes.append(("pattern", pattern))
    kind = _INPUT_TYPES.get(format, "text") if isinstance(format, str) else "text"
    return replace(told, control=Control.TEXT, input_type=kind, attributes=tuple(attributes))


def browser_pattern(pattern: JsonValue) -> str | None:
    """A pattern as browsers read it: of the whole value. None where it is not given to them."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= PATTERN_CHARS_MAX:
        return None
    # Attack: a pattern that takes for ever. A browser's engine tries again and again, ours does not, and
    # checks every call: only patterns without repetition inside repetition go out.
    if _NESTED.search(pattern) or len(_GREEDY.findall(pattern)) > 3:
        return None
    before = "" if pattern.startswith("^") else ".*"
    is_anchored = pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern.removeprefix("^")
    inner = inner[:-1] if is_anchored else inner
    return f"{before}(?:{inner}){'' if is_anchored else '.*'}"


def _bounds(meant: Mapping[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    for keyword, attribute in (("minimum", "min"), ("maximum", "max")):
        if _is_number(meant.get(keyword)):
            yield attribute, exact(meant[keyword])
    step = meant.get("multipleOf")
    if _is_number(step) and step > 0 and "minimum" not in meant:  # a browser counts steps from the minimum
        yield "step", exact(step)
    else:
        yield "step", "1" if kind == "integer" else "any"


def _is_count(value: JsonValue) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 31


def _is_number(value: JsonValue) -> TypeGuard[float]:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and abs(value) < 1e18
    )


def _text(value: JsonValue) -> str:
    return value[:_TOLD_CHARS_MAX] if isinstance(value, str) else ""


def _example(meant: Mapping[str, Any]) -> str:
    among = meant.get("examples")
    first = among[0] if isinstance(among, list) and among else meant.get("default")
    if first is None:
        return ""
    text = first if isinstance(first, str) else exact(first)
    return text.partition("\n")[0][:120]


# -- the same in words --------------------------------------------------------------------------------------


class Parameter(Struct, frozen=True, kw_only=True):
    """One line of the table of parameters."""

    path: str
    """``address.street``, ``tags[]``."""
    depth: int
    kind: str
    required: bool
    description: str
    rules: tuple[str, ...]
    default: str | None


def parameters(schema: JsonObject | None) -> tuple[Parameter, ...]:
    """A schema as a table that people read: objects and arrays taken apart, as deep as forms go."""
    maker = _Maker(schema or {})
    return tuple(_listed(maker, schema or {}, "", 0, [FIELDS_MAX]))


def _listed(maker: _Maker, schema: JsonValue, path: str, depth: int, left: list[int]) -> Iterator[Parameter]:
    meant = maker.meant(schema)
    if meant is None or depth > DEPTH_MAX:
        return
    properties, required = meant.get("properties"), meant.get("required")
    for name, inner in (properties if isinstance(properties, dict) else {}).items():
        if left[0] <= 0:
            return
        left[0] -= 1
        each = maker.meant(inner)
        told: Mapping[str, Any] = each if each is not None else {}
        here = f"{path}.{name}" if path else name
        yield Parameter(
            path=here,
            depth=depth,
            kind=type_text(told),
            required=isinstance(required, list) and name in required,
            description=_text(told.get("description")),
            rules=tuple(_rules(told)),
            default=exact(told["default"])[:_TOLD_CHARS_MAX] if "default" in told else None,
        )
        yield from _listed(maker, told, here, depth + 1, left)
        if isinstance(told.get("items"), dict):
            yield from _listed(maker, told["items"], f"{here}[]", depth + 1, left)


def type_text(meant: Mapping[str, Any]) -> str:
    """The type of a value in words: ``string``, ``list of integer``, ``string or null``."""
    kind = meant.get("type")
    kinds = [each for each in kind if isinstance(each, str)] if isinstance(kind, list) else [kind]
    words = []
    for each in kinds:
        if each == "array":
            items = meant.get("items")
            inner = items.get("type") if isinstance(items, dict) else None
            words.append(f"list of {inner}" if isinstance(inner, str) else "list")
        elif isinstance(each, str):
            words.append(each)
    if words:
        format = meant.get("format")
        return " or ".join(words)[:80] + (f" ({format[:40]})" if isinstance(format, str) else "")
    if "enum" in meant or "const" in meant:
        return "choice"
    if isinstance(meant.get("properties"), dict):
        return "object"
    return "one of several" if _has_alternatives(meant) else "anything"


_RULES: Final = (
    ("minimum", "at least {}"), ("exclusiveMinimum", "above {}"), ("maximum", "at most {}"),
    ("exclusiveMaximum", "below {}"), ("multipleOf", "a multiple of {}"),
    ("minLength", "at least {} long"), ("maxLength", "at most {} long"), ("pattern", "fits {}"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"), ("const", "always {}"),
)  # fmt: skip


def _rules(meant: Mapping[str, Any]) -> Iterator[str]:
    among = meant.get("enum")
    if isinstance(among, list):
        shown = ", ".join(_label(value) for value in among[:12])
        yield f"one of {shown}" + (f" and {len(among) - 12} more" if len(among) > 12 else "")
    for keyword, words in _RULES:
        if keyword in meant:
            value = meant[keyword]
            yield words.format(value if isinstance(value, str) else exact(value))[:200]
    if meant.get("uniqueItems") is True:
        yield "no item twice"
