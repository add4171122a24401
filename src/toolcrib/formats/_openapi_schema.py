"""Schemas of an OpenAPI document, said in JSON Schema 2020-12: each of them translated once.

What a schema refers to becomes a definition that schemas share, so that circles stay circles and a reference
that is used a thousand times costs no more than one. ``assembled`` puts a schema and the definitions it needs
together; what would be larger than a schema may be is cut at its references, from the far end.

This module knows schemas and references. Operations, parameters and bodies are ``openapi.py``'s business, and
nothing here ever leaves the document: a reference to a file or an address is a loss, never a request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

import jsonschema_rs

from toolcrib import schema as json_schema
from toolcrib.formats import _schema_lint
from toolcrib.formats._node import Guesses, kind_of, shown
from toolcrib.jsontext import JsonObject, JsonValue, Pointer, compact

REFERENCES_MAX: Final = 64
"""How many references may follow one another before something else is found."""
TEXT_CHARS_MAX: Final = 500
"""How much of a description inside a schema is kept: models read all of it with every request."""
EXAMPLE_BYTES_MAX: Final = 200
_LEAF_ITEMS_MAX: Final = 20
_CUTS: Final = (4, 3, 2, 1, 0)

Say = Callable[[str, str, Pointer, "str | None"], None]
"""Reports a code and what is wrong at a place, as a warning, with what to do about it."""


class Direction(StrEnum):
    """Which way a value goes: what is read-only is no part of a request, what is write-only of no answer."""

    REQUEST = "request"
    RESPONSE = "response"


class Lost(Exception):
    """Something that cannot be expressed; the operation that needs it is lost."""

    def __init__(self, code: str, message: str, pointer: Pointer, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.pointer = pointer
        self.hint = hint


class Resolver:
    """Follows references inside one document."""

    def __init__(self, root: JsonValue) -> None:
        self._root = root
        self._found: dict[str, tuple[JsonValue, Pointer]] = {}

    def target(self, reference: str, pointer: Pointer) -> tuple[JsonValue, Pointer]:
        """What a reference leads to, and where that is. Raises Lost."""
        if reference in self._found:
            return self._found[reference]
        if not reference.startswith("#"):
            # Attack: a reference to a file or an address makes the reader fetch it.
            raise Lost(
                "openapi.reference.remote",
                f"$ref {shown(reference)} leads out of the document",
                pointer,
                "bundle the document into one file first; nothing is fetched for it",
            )
        fragment = unquote(reference[1:])
        if fragment and not fragment.startswith("/"):
            raise Lost(
                "openapi.reference.missing",
                f"$ref {shown(reference)} names an anchor, which is not supported",
                pointer,
                "refer to the place itself (#/components/schemas/NAME)",
            )
        value = self._root
        steps: list[str | int] = []
        for text in fragment.split("/")[1:]:
            step = text.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and step in value:
                value = value[step]
                steps.append(step)
            elif isinstance(value, list) and _is_index(step) and int(step) < len(value):
                value = value[int(step)]
                steps.append(int(step))
            else:
                raise Lost("openapi.reference.missing", f"$ref {shown(reference)} leads nowhere", pointer)
        found = self._found[reference] = (value, tuple(steps))
        return found

    def follow(self, value: JsonValue, pointer: Pointer) -> tuple[JsonValue, Pointer]:
        """A value that may be a reference, or a reference to one: what it stands for. Raises Lost."""
        seen: set[Pointer] = set()
        while isinstance(value, dict) and isinstance(value.get("$ref"), str):
            if pointer in seen or len(seen) > REFERENCES_MAX:
                raise Lost("openapi.reference.circular", "references that only lead to one another", pointer)
            seen.add(pointer)
            value, pointer = self.target(value["$ref"], (*pointer, "$ref"))
        return value, pointer


def _is_index(step: str) -> bool:
    return step.isdecimal() and step.isascii() and len(step) < 7


# -- keywords -----------------------------------------------------------------------------------------------

_TEXTS: Final = frozenset({"title", "description", "format", "contentEncoding", "contentMediaType"})
_COUNTS: Final = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains",
     "maxContains"}
)  # fmt: skip
_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_FLAGS: Final = frozenset({"uniqueItems", "deprecated"})
_ONE_SCHEMA: Final = frozenset(
    {"items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else",
     "unevaluatedItems", "unevaluatedProperties"}
)  # fmt: skip
_LISTS_OF_SCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS_OF_SCHEMAS: Final = frozenset({"patternProperties", "dependentSchemas"})
_OF_THE_SAME: Final = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
"""What says more about the same value."""
_APPLICATORS: Final = frozenset({"allOf", "anyOf", "oneOf", "not", "$ref"})
_UNSUPPORTED: Final = frozenset({"$dynamicRef", "$recursiveRef"})


class Schemas:
    """The schemas of one document, for one direction."""

    def __init__(
        self,
        resolver: Resolver,
        direction: Direction,
        say: Say,
        *,
        is_3_0: bool,
        refused_patterns: frozenset[str] = frozenset(),
    ) -> None:
        self.resolver = resolver
        self.direction = direction
        self.say = say
        self.is_3_0 = is_3_0
        self.refused_patterns = refused_patterns
        self.patterns: set[str] = set()
        """All that were met, so that they can be tried before tools are made of them."""
        self.undefined: dict[Pointer, list[str]] = {}
        """Names that are required and not described, by the schemas that require them."""
        self._is_schema: dict[Pointer, bool] = {}
        """Whether there is a schema, for each place that a reference leads to."""
        self._composed: set[Pointer] = set()
        """Schemas that are parts of others, which may describe what they require."""
        self._guesses = Guesses()
        self._hidden_mark = "readOnly" if direction is Direction.REQUEST else "writeOnly"
        self._names: dict[Pointer, str] = {}
        self._taken: set[str] = set()
        self._pending: dict[str, tuple[JsonValue, Pointer]] = {}
        self._made: dict[str, JsonValue] = {}
        self._lost: dict[str, Lost] = {}
        self._needs: dict[str, tuple[str, ...]] = {}
        self._parts: dict[str, int] = {}

    # -- one schema -----------------------------------------------------------------------------------------

    def translated(self, value: JsonValue, pointer: Pointer) -> JsonValue:
        """A schema whose references lead to ``#/$defs/NAME``. Raises Lost."""
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            message = f"a schema must be an object, got {kind_of(value)}"
            self.say("openapi.schema.keyword", message, pointer, None)
            return {}
        reference = value.get("$ref")
        if isinstance(reference, str):
            return self._referring(value, reference, pointer)
        return self._plain(value, pointer)

    def _referring(self, value: JsonObject, reference: str, pointer: Pointer) -> JsonValue:
        made = self._reference(reference, pointer)
        if self.is_3_0:  # whatever stands beside a reference shall be ignored there
            beside: JsonObject = {}
            if isinstance(value.get("description"), str):
                beside["description"] = _cut(value["description"])
        else:
            if not value.keys().isdisjoint(_schema_lint.COMPOSING):
                self._compose(value, pointer)
            beside = self._plain({key: item for key, item in value.items() if key != "$ref"}, pointer)
            self.undefined.pop(pointer, None)  # what it refers to describes the rest
        if not beside or isinstance(made, bool):
            return made
        if "$ref" in made or not (made.keys() & beside.keys()) - {"description", "title", "examples"}:
            return {**made, **beside}
        return {"allOf": [made], **beside}

    def _reference(self, reference: str, pointer: Pointer) -> JsonValue:
        target, place = self.resolver.follow({"$ref": reference}, pointer)
        if isinstance(target, bool):
            return target
        if not isinstance(target, dict):
            raise Lost(
                "openapi.reference.missing",
                f"$ref {shown(reference)} leads to no schema, but to {kind_of(target)}",
                pointer,
            )
        # Attack: a reference to another part of the document gives a schema that says nothing.
        if place not in self._is_schema:
            self._is_schema[place] = _schema_lint.is_schema(target, self._guesses)
        if not self._is_schema[place]:
            raise Lost(
                "openapi.reference.missing",
                f"$ref {shown(reference)} leads to no schema",
                pointer,
                "refer to a schema (#/components/schemas/NAME)",
            )
        if _is_leaf(target):
            return self._plain(target, place)
        return {"$ref": f"#/$defs/{self._name(target, place)}"}

    def _name(self, target: JsonObject, place: Pointer) -> str:
        if place in self._names:
            return self._names[place]
        steps = [str(step) for step in place]
        spoken = steps[-1:] if steps[:2] == ["components", "schemas"] and len(steps) == 3 else steps[-3:]
        wanted = re.sub(r"[^A-Za-z0-9_.-]+", "_", "_".join(spoken)).strip("_")[:100] or "schema"
        name = distinct(wanted, self._taken)
        self._names[place] = name
        self._pending[name] = (target, place)
        return name

    def _plain(self, value: JsonObject, pointer: Pointer) -> JsonObject:
        made: JsonObject = {}
        hidden: frozenset[str] = frozenset()
        if "required" in value:
            hidden = self._hidden(value, pointer)
            self.undefined[pointer] = [name for _, name in _schema_lint.undefined(value)]
        for key, item in value.items():
            if key in _UNSUPPORTED:
                what = f"{key} is not supported and left out; the server checks this part"
                self.say("openapi.schema.unsupported", what, (*pointer, key), None)
                continue
            if key == "$ref":
                message = f"$ref must be text, got {kind_of(item)}"
                raise Lost("openapi.reference.missing", message, (*pointer, key))
            kept = self._keyword(key, item, value, (*pointer, key), hidden)
            if kept is not None:
                made[kept[0]] = kept[1]
        if self.is_3_0 and value.get("nullable") is True:
            made = _nullable(made)
        note = _discriminated(value)
        if note:
            made["description"] = f"{made['description']} {note}" if made.get("description") else note
        return made

    def _keyword(
        self, key: str, item: JsonValue, value: JsonObject, pointer: Pointer, hidden: frozenset[str]
    ) -> tuple[str, JsonValue] | None:
        """A keyword as it is written now; None where it says nothing that can be kept."""
        match key:
            case "type":
                types = [item] if isinstance(item, str) else item
                if isinstance(types, list) and types and all(name in json_schema.TYPES for name in types):
                    return key, item if isinstance(item, str) else list(dict.fromkeys(types))
            case "properties":
                item, pointer = self.resolver.follow(item, pointer)
                if isinstance(item, dict):
                    return key, self._properties(item, pointer)
            case "required":
                if isinstance(item, list) and all(isinstance(name, str) for name in item):
                    names = [name for name in dict.fromkeys(item) if name not in hidden]
                    return (key, names) if names else None
            case "enum":
                if isinstance(item, list) and item:
                    return key, item
            case "const" | "default":
                return key, item
            case "example":
                return ("examples", [item]) if "examples" not in value and _is_short(item) else None
            case "examples":
                shown_ones = [one for one in item if _is_short(one)][:3] if isinstance(item, list) else []
                return (key, shown_ones) if shown_ones else None
            case "exclusiveMinimum" | "exclusiveMaximum" if isinstance(item, bool):
                bound = value.get("minimum" if key == "exclusiveMinimum" else "maximum")
                return (key, bound) if item and _is_number(bound) else None
            case "minimum" | "maximum" if value.get(f"exclusive{key.capitalize()}") is True:
                return None
            case "pattern":
                if isinstance(item, str):
                    return self._pattern(item, pointer)
            case "multipleOf":
                if _is_number(item) and item > 0:
                    return key, item
            case "dependentRequired":
                if isinstance(item, dict) and all(_is_names(names) for names in item.values()):
                    return key, {name: list(dict.fromkeys(names)) for name, names in item.items()}
            case _:
                return self._other(key, item, value, pointer)
        self._refused(key, item, pointer)
        return None

    def _other(
        self, key: str, item: JsonValue, value: JsonObject, pointer: Pointer
    ) -> tuple[str, JsonValue] | None:
        if key in _TEXTS:
            if isinstance(item, str):
                return (key, _cut(item)) if item else None
        elif key in _COUNTS:
            if _is_number(item) and item >= 0 and item == int(item):
                return key, int(item)
        elif key in _BOUNDS:
            if _is_number(item):
                return key, item
        elif key in _FLAGS:
            if isinstance(item, bool):
                return (key, item) if item else None
        elif key in _ONE_SCHEMA:
            if isinstance(item, (dict, bool)):
                if key in _OF_THE_SAME:
                    self._compose(item, pointer)
                return key, self.translated(item, pointer)
        elif key in _LISTS_OF_SCHEMAS:
            if isinstance(item, list) and item and all(isinstance(one, (dict, bool)) for one in item):
                for number, one in enumerate(item if key in _OF_THE_SAME else ()):
                    self._compose(one, (*pointer, number))
                return key, [self.translated(one, (*pointer, number)) for number, one in enumerate(item)]
        elif key in _MAPS_OF_SCHEMAS:
            if isinstance(item, dict) and all(isinstance(one, (dict, bool)) for one in item.values()):
                if key == "patternProperties" and any(self._pattern(one, pointer) is None for one in item):
                    return None
                for name, one in item.items() if key == "dependentSchemas" else ():
                    self._compose(one, (*pointer, name))
                return key, {name: self.translated(one, (*pointer, name)) for name, one in item.items()}
        else:
            # Extensions, annotations for other readers, unknown keywords.
            meant = _schema_lint.keywords_meant(key, item, value, self._guesses)
            if meant:
                what, hint = _schema_lint.misspelt_words(meant, value)
                self.say(_schema_lint.MISSPELT, f"{shown(key)} is left out: {what}", pointer, hint)
            return None
        self._refused(key, item, pointer)
        return None

    def _compose(self, value: JsonValue, pointer: Pointer) -> None:
        """Remember that a schema, or the one it refers to, is a part of another."""
        self._composed.add(self.resolver.follow(value, pointer)[1])

    def report_undefined(self) -> None:
        """Report the names that schemas require and nothing describes. Only when all schemas are translated
        it is known which of them are parts of others."""
        for pointer, names in self.undefined.items():
            if names and pointer not in self._composed:
                message, hint = _schema_lint.undefined_words(*names), _schema_lint.UNDEFINED_HINT
                self.say(_schema_lint.UNDEFINED, message, (*pointer, "required"), hint)

    def _refused(self, key: str, item: JsonValue, pointer: Pointer) -> None:
        what = shown(item) if not isinstance(item, (dict, list)) else kind_of(item)
        message = f"{key} is left out: {what} cannot stand there"
        self.say("openapi.schema.keyword", message, pointer, None)

    def _pattern(self, pattern: str, pointer: Pointer) -> tuple[str, str] | None:
        self.patterns.add(pattern)
        if pattern not in self.refused_patterns:
            return "pattern", pattern
        self.say(
            "openapi.schema.pattern",
            f"the pattern {shown(pattern)} is left out: it does not run in linear time, or is too large",
            pointer,
            None,
        )
        return None

    def _properties(self, item: JsonObject, pointer: Pointer) -> JsonObject:
        made: JsonObject = {}
        for name, one in item.items():
            place = (*pointer, name)
            if not isinstance(one, (dict, bool)):
                self._refused(name, one, place)
            elif not self.is_hidden(one, place):
                made[name] = self.translated(one, place)
        return made

    def is_hidden(self, value: JsonValue, pointer: Pointer) -> bool:
        """Whether a property does not go this way."""
        if not isinstance(value, dict):
            return False
        if value.get(self._hidden_mark) is True:
            return True
        if "$ref" in value:
            target, _ = self.resolver.follow(value, pointer)
            return isinstance(target, dict) and target.get(self._hidden_mark) is True
        return False

    def _hidden(self, value: JsonObject, pointer: Pointer) -> frozenset[str]:
        """The names of an object that do not go this way, those of what it is composed of included."""
        found: set[str] = set()
        seen: set[Pointer] = set()
        stack: list[tuple[JsonValue, Pointer]] = [(value, pointer)]
        while stack and len(seen) < REFERENCES_MAX:
            one, place = self.resolver.follow(*stack.pop())
            if place in seen or not isinstance(one, dict):
                continue
            seen.add(place)
            properties = one.get("properties")
            for name, item in properties.items() if isinstance(properties, dict) else ():
                if self.is_hidden(item, (*place, "properties", name)):
                    found.add(name)
            parts = one.get("allOf")
            if isinstance(parts, list):
                stack += [(part, (*place, "allOf", number)) for number, part in enumerate(parts)]
        return frozenset(found)

    # -- a schema with its definitions ----------------------------------------------------------------------

    def assembled(self, schema: JsonObject, pointer: Pointer) -> tuple[JsonObject, bool]:
        """A schema with the definitions it needs, and whether it had to be cut. Raises Lost."""
        whole = self._with_definitions(schema, parts_max=json_schema.NODES_MAX)
        if whole is not None and not json_schema.oversize(whole):
            return self._ending(whole), False
        for distance in _CUTS:
            cut = self._with_definitions(schema, parts_max=json_schema.NODES_MAX, distance_max=distance)
            if cut is not None and not json_schema.oversize(cut):
                return self._ending(cut), True
        flaws = json_schema.oversize(schema)
        raise Lost(
            "openapi.schema.too-large",
            flaws[0].message if flaws else f"the schema has more than {json_schema.NODES_MAX:,} parts",
            pointer,
        )

    def assembled_small(self, schema: JsonObject, parts_max: int, bytes_max: int) -> JsonObject | None:
        """A schema with the definitions it needs, or None where that is more than so much."""
        whole = self._with_definitions(schema, parts_max=parts_max)
        if whole is None or len(compact(whole)) > bytes_max or json_schema.oversize(whole):
            return None
        return self._ending(whole)

    def _ending(self, schema: JsonObject) -> JsonObject:
        """Return the schema if its definitions come to an end, else raise Lost.

        Attack: definitions that only lead to one another, which a reader follows without end.
        """
        for flaw in json_schema.endless(schema) if "$defs" in schema else ():
            name = str(flaw.pointer[1])  # only definitions are referred to
            raise Lost(
                "openapi.reference.circular",
                f"the schema {shown(name)} leads back to itself and never into a part of the value",
                self._pending[name][1],
                "a schema may refer to itself below properties or items",
            )
        return schema

    def _with_definitions(
        self, schema: JsonObject, *, parts_max: int, distance_max: int | None = None
    ) -> JsonObject | None:
        wanted = list(_references(schema))
        if not wanted:
            return schema
        parts = _count(schema)
        used: dict[str, None] = {}
        level = list(dict.fromkeys(wanted))
        distance = 0
        while level and (distance_max is None or distance < distance_max):
            below: dict[str, None] = {}
            for name in level:
                used[name] = None
                needs = self._definition(name)
                parts += self._parts[name]
                if parts > parts_max:
                    return None
                below.update(dict.fromkeys(needs))
            level = [name for name in below if name not in used]
            distance += 1
        if not level:
            return {**schema, "$defs": {name: self._made[name] for name in sorted(used)}}
        stubs = {name: self._stub(name) for name in level}
        kept = {name: _stubbed(self._made[name], stubs) for name in sorted(used)}
        made = _stubbed(schema, stubs)
        assert isinstance(made, dict)
        return {**made, "$defs": kept} if kept else made

    def _definition(self, name: str) -> tuple[str, ...]:
        """Translate a definition that was only named so far; which ones it needs itself. Raises Lost."""
        if name in self._lost:
            raise self._lost[name]
        if name not in self._made:
            try:
                made = self._plain(*self._object(name))
            except Lost as lost:
                self._lost[name] = lost
                raise
            self._made[name] = made
            self._needs[name] = tuple(dict.fromkeys(_references(made)))
            self._parts[name] = _count(made)
        return self._needs[name]

    def _object(self, name: str) -> tuple[JsonObject, Pointer]:
        target, place = self._pending[name]
        assert isinstance(target, dict)
        return target, place

    def _stub(self, name: str) -> JsonObject:
        target, _ = self._object(name)
        made: JsonObject = {}
        if isinstance(target.get("type"), str) and target["type"] in json_schema.TYPES:
            made["type"] = target["type"]
            if self.is_3_0 and target.get("nullable") is True:
                made["type"] = [target["type"], "null"]
        title = target.get("title")
        made["description"] = (
            f"{_cut(title) if isinstance(title, str) and title else name} (not told in full)"
        )
        return made


# -- small questions ----------------------------------------------------------------------------------------


def distinct(wanted: str, taken: set[str]) -> str:
    """The name, or the name with a number that nobody has; it is taken then."""
    name = wanted
    number = 2
    while name in taken:
        name = f"{wanted}_{number}"
        number += 1
    taken.add(name)
    return name


def refused_patterns(patterns: Set[str], count: int) -> frozenset[str]:
    """Those that cannot be compiled where ``count`` patterns share the memory there is for them."""
    size_max = min(json_schema.PATTERN_BYTES_MAX, json_schema.PATTERNS_BYTES_MAX // max(count, 1))
    options = jsonschema_rs.RegexOptions(size_limit=size_max)
    refused = set()
    for pattern in patterns:
        try:
            if len(pattern) > json_schema.PATTERN_CHARS_MAX:
                raise ValueError("too long")
            jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=options)
        except (jsonschema_rs.ValidationError, ValueError):
            refused.add(pattern)
    return frozenset(refused)


def _is_leaf(target: JsonObject) -> bool:
    """A schema that is shorter written out than referred to: a text, a number, a few choices."""
    for key, item in target.items():
        if isinstance(item, dict):
            if not key.startswith("x-") and key != "example":
                return False
        elif isinstance(item, list) and (key != "enum" or len(item) > _LEAF_ITEMS_MAX):
            return False
    return True


_NAME_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
_DATA: Final = frozenset({"enum", "const", "default", "examples", "required", "dependentRequired"})
_DEFINITIONS: Final = "#/$defs/"


def _references(schema: JsonValue) -> Iterator[str]:
    """List the definitions that a translated schema refers to."""
    stack = [schema]
    while stack:
        one = stack.pop()
        if isinstance(one, list):
            stack += one
        elif isinstance(one, dict):
            reference = one.get("$ref")
            if isinstance(reference, str):
                yield reference[len(_DEFINITIONS) :]
            for key, item in one.items():
                if key in _NAME_MAPS:
                    stack += item.values()
                elif key not in _DATA:
                    stack.append(item)


def _stubbed(schema: JsonValue, stubs: Mapping[str, JsonObject]) -> JsonValue:
    if isinstance(schema, list):
        return [_stubbed(item, stubs) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made: JsonObject = {}
    for key, item in schema.items():
        if key == "$ref" and item[len(_DEFINITIONS) :] in stubs:
            made = {**stubs[item[len(_DEFINITIONS) :]], **made}
        elif key in _NAME_MAPS:
            made[key] = {name: _stubbed(one, stubs) for name, one in item.items()}
        else:
            made[key] = item if key in _DATA else _stubbed(item, stubs)
    return made


def _count(value: JsonValue) -> int:
    """How many objects and arrays there are."""
    count = 0
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            count += 1
            stack += one.values()
        elif isinstance(one, list):
            count += 1
            stack += one
    return count


def _nullable(made: JsonObject) -> JsonObject:
    if made.keys() & _APPLICATORS:
        # Beside these a type of null would be refused by what they say; null is what the author meant.
        about: JsonObject = {key: made.pop(key) for key in ("title", "description") if key in made}
        return {**about, "anyOf": [made, {"type": "null"}]}
    kind = made.get("type")
    if isinstance(kind, str) and kind != "null":
        made["type"] = [kind, "null"]
    choices = made.get("enum")
    if isinstance(choices, list) and None not in choices:
        made["enum"] = [*choices, None]
    return made


def _discriminated(value: JsonObject) -> str:
    """What a discriminator says, for readers: validators have no such keyword."""
    found = value.get("discriminator")
    name = found.get("propertyName") if isinstance(found, dict) else None
    if not isinstance(name, str):
        return ""
    mapping = found.get("mapping") if isinstance(found, dict) else None
    values = [shown(one) for one in list(mapping)[:20]] if isinstance(mapping, dict) else []
    return f"{shown(name)} tells which one it is" + (f": {', '.join(values)}." if values else ".")


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…"


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_names(value: JsonValue) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_short(value: JsonValue) -> bool:
    return len(compact(value)) <= EXAMPLE_BYTES_MAX
