"""What a provider can hold of a schema: a table of its form, and one walk that narrows a schema to it.

A provider takes a part of JSON Schema. ``Form`` says which part, as data; ``narrow`` walks a schema once,
rewrites or drops what the form does not hold, and reports each change as a ``Loss``. A schema that the form
accepts comes out as its author wrote it, key order included. Calls are checked against the author's schema,
so narrowing can never let a wrong call through.

This module knows no provider: the dialects beside it hold the tables. ``schema`` lies above and says what the
keywords mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

import jsonschema_rs
from msgspec import Struct

from toolcrib.jsontext import JsonObject, JsonValue, Pointer, compact, place_text, walk
from toolcrib.model import Loss, Schema
from toolcrib.schema import (
    DEPTH_MAX,
    DRAFT,
    DRAFTS,
    NODES_MAX,
    PATTERN_CHARS_MAX,
    compile_schema,
    cut,
    iter_complaints,
    meta_validator,
    short,
    target_of,
)


class Nulls(StrEnum):
    """How a form says that a value may be null."""

    AS_WRITTEN = "as written"
    TYPE_LIST = "type list"
    """``type: [T, "null"]``; an ``anyOf`` with null is rewritten."""
    FLAG = "flag"
    """``nullable: true``; type lists do not exist."""


class EnumValues(StrEnum):
    """What may stand in an ``enum``."""

    ANY = "any"
    SCALARS = "scalars"
    STRINGS = "strings"


class Patterns(StrEnum):
    """Which regular expressions may stand in ``pattern``."""

    ANY = "any"
    VALID = "valid"
    LINEAR = "linear"
    """Those without look-around, back references and Unicode classes."""


class Limits(Struct, frozen=True, kw_only=True):
    """How large a schema may be."""

    depth: int
    """Objects and arrays inside each other, the root included."""
    properties: int
    enum_values: int
    string_chars: int
    """Names of properties, enum values and constants together."""
    long_enum: int
    """From how many values on one enum is long,"""
    long_enum_chars: int
    """and how many characters the strings of a long enum may have."""


class Form(Struct, frozen=True, kw_only=True):
    """The part of JSON Schema that a provider takes. The defaults take everything."""

    provider: str
    keywords: frozenset[str] | None = None
    """The only keywords that pass; None: all but ``dropped``."""
    dropped: frozenset[str] = frozenset()
    extensions: bool = False
    """Keywords of the author's own (``x-``) pass besides ``keywords``."""
    told: frozenset[str] = frozenset()
    """Dropped keywords whose values the description tells instead."""
    root_refused: frozenset[str] = frozenset()
    """Keywords that must not stand at the root."""
    property_names: re.Pattern[str] | None = None
    """What the names of the root's properties must look like."""
    formats: Mapping[str, frozenset[str]] | None = None
    """Values of ``format`` by type; None: any."""
    nulls: Nulls = Nulls.AS_WRITTEN
    enum_values: EnumValues = EnumValues.ANY
    min_items_max: int | None = None
    own_draft: bool = False
    """Schemas of older drafts pass as they are, when they say so."""
    write_out: bool = False
    """References are replaced by what they refer to."""
    patterns: Patterns = Patterns.ANY
    array_items: bool = False
    """Every array states its items."""
    object_properties: bool = False
    """Every object below the root names its properties."""
    known_required: bool = False
    """``required`` names only defined properties."""
    typed: bool = False
    """Every node states a type or alternatives."""
    closed: bool = False
    """Every object forbids further properties; open objects do not exist."""
    all_required: bool = False
    """Every property is required; the formerly optional ones become nullable."""
    limits: Limits | None = None


class Narrowed(Struct, frozen=True, kw_only=True):
    """A schema in a provider's form; without ``document`` the form cannot hold it, ``because`` says why."""

    document: JsonObject | None
    because: str = ""
    losses: tuple[Loss, ...] = ()
    nullable: tuple[Pointer, ...] = ()
    """Places in ``document`` that became nullable: a null there means that the model left the value out."""


def narrow(schema: Schema, form: Form, tool: str) -> Narrowed:
    """``schema`` in the form of a provider, with what that cost. Never raises, whatever the schema."""
    narrowing = _Narrowing(form, tool)
    try:
        document = narrowing.whole(schema)
    except _DoesNotFit as reason:
        return Narrowed(document=None, because=str(reason))
    return Narrowed(
        document=document,
        losses=tuple(dict.fromkeys(narrowing.losses)),
        nullable=tuple(narrowing.nullable),
    )


_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SINGLES: Final = frozenset(
    {
        "items",
        "additionalItems",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "propertyNames",
        "contains",
        "contentSchema",
        "not",
        "if",
        "then",
        "else",
    }
)
_CONDITION: Final = frozenset({"if", "then", "else"})
_ALTERNATIVES: Final = ("anyOf", "oneOf")
_WITHOUT_MEANING: Final = frozenset({"$schema", "$id", "$anchor", "$comment", "$defs", "definitions"})
"""Dropping these loses nothing once references are written out."""
_ANNOTATIONS: Final = frozenset({"description", "title", "default", "examples", "$comment", "deprecated"})
_OF_NUMBERS: Final = ("format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OF_TYPE: Final = {
    "string": ("format", "pattern", "minLength", "maxLength"),
    "number": _OF_NUMBERS,
    "integer": _OF_NUMBERS,
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
}
_EVALUATING: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "if", "then", "else", "contains", "$ref", "$dynamicRef"}
)
"""Beside one of these, ``unevaluatedItems`` may speak of other items than ``items`` would."""
_LARGER: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLER: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_URI_REFERENCE: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*")
_TOLD_CHARS_MAX: Final = 200


class _DoesNotFit(Exception):
    """The form cannot hold this schema."""


class _Narrowing:
    """One schema on its way into one form.

    ``place`` is always an address in the author's schema, ``out`` the one in the schema that is written.
    """

    def __init__(self, form: Form, tool: str) -> None:
        self.form = form
        self.tool = tool
        self.losses: list[Loss] = []
        self.nullable: list[Pointer] = []
        self.null_kept: set[Pointer] = set()
        self.root: JsonObject = {}
        self.targets: dict[str, JsonValue] = {}
        self.nodes = 0

    def lose(self, place: Pointer, keyword: str, what: str) -> None:
        self.losses.append(Loss(tool=self.tool, pointer=place, keyword=keyword, what=what))

    def takes(self, keyword: str) -> bool:
        form = self.form
        known = form.keywords is None or keyword in form.keywords
        return keyword not in form.dropped and (known or (form.extensions and keyword.startswith("x-")))

    # -- the root -------------------------------------------------------------------------------------------

    def whole(self, schema: Schema) -> JsonObject:
        form = self.form
        try:
            document = schema.document
        except (ValueError, RecursionError):
            raise _DoesNotFit("its schema cannot be read") from None
        if form.keywords is None and self.fits(schema.text, document):
            return document
        self.root = document = self.current(document)
        always = "$ref" in document or "allOf" in document.keys() & form.root_refused
        node, active = self.opened(document, (), frozenset({"#"}), always=always)
        for keyword in _ALTERNATIVES:
            if keyword in node and (keyword in form.root_refused or not self.takes(keyword)):
                node = self.one_object(node, keyword, (), active)
        for keyword in sorted(form.root_refused & node.keys()):
            del node[keyword]
            self.lose((), keyword, f"{form.provider} does not take it at the root")
        types = node.get("type")
        if types is None:
            node = {"type": "object", **node}
            self.lose((), "type", '"object" was added')
        elif isinstance(types, list) and "object" in types:
            node["type"] = "object"
            self.lose((), "type", 'only "object" is kept')
        elif types != "object":
            raise _DoesNotFit(f"its arguments are no object (type {short(types)})")
        node = self.named(node)
        narrowed = self.node(node, (), (), active, opened=True)
        assert isinstance(narrowed, dict)
        both = self.null_kept.intersection(map(_in_value, self.nullable))
        if both:
            # Reading a call could not tell a null that was meant from one that stands for nothing.
            place = min(both, key=lambda place: tuple(map(str, place)))
            raise _DoesNotFit(f"null would have two meanings at {'.'.join(map(str, place))}")
        if form.limits is not None:
            _measure(narrowed, form.limits)
        return narrowed

    def fits(self, text: bytes, document: JsonObject) -> bool:
        """Whether a small schema has nothing that a lenient form could change: most have not."""
        form = self.form
        words = (b'"$', b'"pattern', b'"array"', *(f'"{keyword}"'.encode() for keyword in form.dropped))
        return (
            text.count(b"{") + text.count(b"[") < DEPTH_MAX
            and not any(word in text for word in words)
            and document.get("type") == "object"
            and form.root_refused.isdisjoint(document)
            and meta_validator(DRAFT).is_valid(document)
            and self.named(document) is document
        )

    def current(self, document: JsonObject) -> JsonObject:
        """The document as draft 2020-12, which is what providers validate declarations against."""
        _bounded(document)
        dialect = document.get("$schema", DRAFT)
        known = isinstance(dialect, str) and dialect.rstrip("#") in DRAFTS
        if not known:
            document = {key: value for key, value in document.items() if key != "$schema"}
            self.lose((), "$schema", "not a dialect that is known")
        meta = meta_validator(dialect.rstrip("#") if known and self.form.own_draft else DRAFT)
        if meta.is_valid(document):
            return document
        rewritten = {key: value for key, value in _rewritten(document).items() if key != "$schema"}
        if not meta_validator(DRAFT).is_valid(rewritten):
            complaint = next(iter_complaints(meta_validator(DRAFT), rewritten))
            raise _DoesNotFit(f"its schema is not valid: {complaint}")
        self.lose((), "$schema", "older keywords were rewritten to draft 2020-12")
        return rewritten

    def named(self, node: JsonObject) -> JsonObject:
        """The root without properties whose names the provider refuses."""
        allowed = self.form.property_names
        properties = node.get("properties", {})
        wrong = {name: None for name in properties if allowed is not None and not allowed.fullmatch(name)}
        required = frozenset(node.get("required", ()))
        for name in wrong:
            if name in required:
                raise _DoesNotFit(f"{self.form.provider} refuses the name of its property {short(name)}")
            self.lose(("properties", name), "properties", f"{self.form.provider} refuses the name")
        if not wrong:
            return node
        return {**node, "properties": {name: properties[name] for name in properties if name not in wrong}}

    # -- one node -------------------------------------------------------------------------------------------

    def node(
        self, schema: JsonValue, place: Pointer, out: Pointer, active: frozenset[str], *, opened: bool = False
    ) -> JsonValue:
        form = self.form
        if len(out) > DEPTH_MAX:
            raise _DoesNotFit("its schema is too deep when references are written out")
        if isinstance(schema, bool):
            if form.keywords is None:
                return schema
            if schema is False:
                self.lose(place, "false", "a place where nothing fits cannot be said")
            schema = {}
        if opened:
            node = dict(schema)
        else:
            node, active = self.opened(schema, place, active)
        told: list[str] = []
        if form.keywords is not None:
            node, active = self.alternatives(node, place, active)
            self.enum(node, place, told)
        if form.nulls is Nulls.FLAG:
            node = self.flagged(node, place)
        self.values(node, place, told)
        node = self.unevaluated_items(node, place)
        if "prefixItems" in node and not self.takes("prefixItems") and "items" in node:
            # It speaks of what follows the first items: alone it would speak of all of them.
            del node["items"]
            self.lose(place, "items", "it would mislead without prefixItems")
        for keyword in [keyword for keyword in node if not self.takes(keyword)]:
            self.drop(node, keyword, place, told)
        if form.typed:
            self.typed(node, place)
        if form.array_items and "items" not in node and "array" in _type_list(node):
            if form.typed:
                raise _DoesNotFit(f"it has an array of anything{_at(place)}")
            node["items"] = {}
            self.lose(place, "items", "an open one was added: providers refuse an array without it")
        is_object = "properties" in node or "object" in _type_list(node)
        if is_object:
            self.names_properties(node, place, out)
        self.children(node, place, out, active)
        if is_object:
            self.requires(node, place, out)
        if told and (out or "description" not in form.root_refused):
            node["description"] = _with(node.get("description"), told)
        return node

    def alternatives(
        self, node: JsonObject, place: Pointer, active: frozenset[str]
    ) -> tuple[JsonObject, frozenset[str]]:
        """``oneOf`` as ``anyOf``; alternatives of an object as one object; null as the form says it."""
        if "oneOf" in node and not self.takes("oneOf") and "anyOf" not in node and self.takes("anyOf"):
            node = {"anyOf" if key == "oneOf" else key: value for key, value in node.items()}
            self.lose(place, "oneOf", "reads as anyOf: more than one alternative may fit")
        if "anyOf" in node and "properties" in node:
            return self.one_object(node, "anyOf", place, active), active
        arms = node.get("anyOf", [])
        some = [arm for arm in arms if not _is_null(arm)]
        rewrites = self.form.nulls is not Nulls.AS_WRITTEN and len(some) == 1 < len(arms)
        if rewrites and isinstance(some[0], dict):
            only, inside = self.opened(some[0], place, active)
            if "type" in only:
                rest = {key: value for key, value in node.items() if key != "anyOf"}
                node, active = self.both(rest, only, place), inside
                node["type"] = list(dict.fromkeys([*_type_list(only), "null"]))
                if "enum" in node:
                    node["enum"] = [*node["enum"], None]
        if "anyOf" in node and "type" in node and self.form.typed:
            arms = [{"type": node["type"], **arm} if isinstance(arm, dict) else arm for arm in node["anyOf"]]
            node = {**{key: value for key, value in node.items() if key != "type"}, "anyOf": arms}
        return node, active

    def enum(self, node: JsonObject, place: Pointer, told: list[str]) -> None:
        form = self.form
        if "const" in node and not self.takes("const") and self.takes("enum"):
            value = node.pop("const")
            node["enum"] = [value] if value in node.get("enum", [value]) else node["enum"]
        values = node.get("enum")
        if values is None or form.enum_values is EnumValues.ANY:
            return
        if form.enum_values is EnumValues.SCALARS:
            fits = not any(isinstance(value, (dict, list)) for value in values)
        else:
            kinds = {type(value) for value in values}
            fits = set(_type_list(node)) <= {"string", "null"} and str in kinds <= {str, type(None)}
        if not fits:
            told.append(_told("one of", node.pop("enum")))
            self.lose(place, "enum", f"{form.provider} does not take the values; the description tells them")
        elif form.enum_values is EnumValues.STRINGS and "type" not in node:
            node["type"] = ["string", "null"] if None in values else "string"

    def flagged(self, node: JsonObject, place: Pointer) -> JsonObject:
        """``nullable`` and one type, where the author wrote null as a type, a value or an alternative."""
        types = _type_list(node)
        arms = node.get("anyOf", [])
        some = [arm for arm in arms if not _is_null(arm)]
        nullable = node.pop("nullable", None) is True
        nullable = nullable or len(some) < len(arms) or ("null" in types and len(types) > 1)
        if len(some) < len(arms):
            node["anyOf"] = some or arms[:1]
        if "enum" in node:
            node["enum"] = [value for value in node["enum"] if value is not None]
        if isinstance(node.get("type"), list):
            types = [name for name in dict.fromkeys(types) if name != "null"] or ["null"]
            if len(types) == 1:
                node["type"] = types[0]
            else:
                node = self.split(node, types, place)
        if nullable:
            node["nullable"] = True
        return node

    def split(self, node: JsonObject, types: list[str], place: Pointer) -> JsonObject:
        """A type list as one alternative for each type."""
        if "anyOf" in node:
            self.lose(place, "type", "a type list beside anyOf cannot be said")
            return {key: value for key, value in node.items() if key != "type"}
        self.lose(place, "type", "written as anyOf")
        arms: list[JsonObject] = [{"type": name} for name in types]
        rest: JsonObject = {}
        for key, value in node.items():
            owners = [arm for arm in arms if key in _OF_TYPE.get(arm["type"], ())]
            for owner in owners:
                owner[key] = value
            if not owners and key != "type":
                rest[key] = value
        return {**rest, "anyOf": arms}

    def values(self, node: JsonObject, place: Pointer, told: list[str]) -> None:
        """Keywords that pass with some values only."""
        form = self.form
        if "format" in node and form.formats is not None and self.takes("format"):
            known = {name for kind in _type_list(node) for name in form.formats.get(kind, ())}
            if node["format"] not in known:
                self.drop(node, "format", place, told)
        if "pattern" in node and not _regular(node["pattern"], form.patterns):
            self.drop(node, "pattern", place, told)
        if not all(_regular(pattern, form.patterns) for pattern in node.get("patternProperties", ())):
            self.drop(node, "patternProperties", place, told)
        if form.min_items_max is not None and node.get("minItems", 0) > form.min_items_max:
            self.drop(node, "minItems", place, told)
        if "$id" in node and not _URI_REFERENCE.fullmatch(node["$id"]):
            self.lose(place, "$id", f"{short(node.pop('$id'))} is no URI reference")
        if "$ref" in node and self.target(node["$ref"]) is None:
            self.lose(place, "$ref", f"{short(node.pop('$ref'))} leads nowhere in this schema")

    def drop(self, node: JsonObject, keyword: str, place: Pointer, told: list[str]) -> None:
        value = node.pop(keyword)
        if keyword == "patternProperties" and self.form.closed:
            raise _DoesNotFit(f"it has an open object{_at(place)}")
        if keyword in _WITHOUT_MEANING and self.form.write_out:
            return
        if keyword in self.form.told and not (keyword == "additionalProperties" and isinstance(value, bool)):
            told.append(_told(keyword, value))
            self.lose(place, keyword, f"{self.form.provider} does not take it; the description tells it")
        else:
            self.lose(place, keyword, f"{self.form.provider} does not take it")

    def unevaluated_items(self, node: JsonObject, place: Pointer) -> JsonObject:
        """Write ``unevaluatedItems`` as ``items`` if the form does not take it or asks for ``items``.

        An open ``items`` beside it would leave no item that it speaks of.
        """
        keyword = "unevaluatedItems"
        is_asked = self.form.array_items and "array" in _type_list(node)
        if keyword not in node or "items" in node or (self.takes(keyword) and not is_asked):
            return node
        if "json-schema.org/draft-0" in self.root.get("$schema", ""):
            return node  # these drafts do not know it
        is_same = _EVALUATING.isdisjoint(node) and ("prefixItems" not in node or self.takes("prefixItems"))
        if is_same:
            self.lose(place, keyword, "reads as items, which means the same here")
            return {"items" if key == keyword else key: value for key, value in node.items()}
        if self.takes(keyword):
            self.lose(place, keyword, "it would mean nothing beside the items that providers ask for")
            return {key: value for key, value in node.items() if key != keyword}
        return node

    def typed(self, node: JsonObject, place: Pointer) -> None:
        if node.keys().isdisjoint(("type", "anyOf", "enum", "const", "$ref")):
            if "properties" in node:
                node["type"] = "object"
            elif "items" in node:
                node["type"] = "array"
            else:
                raise _DoesNotFit(f"it takes a value of any type{_at(place)}")

    def children(self, node: JsonObject, place: Pointer, out: Pointer, active: frozenset[str]) -> None:
        for keyword, value in node.items():
            if keyword in _MAPS and isinstance(value, dict):
                node[keyword] = {
                    name: self.node(item, (*place, keyword, name), (*out, keyword, name), active)
                    for name, item in value.items()
                }
            elif isinstance(value, list) and (keyword in _LISTS or keyword == "items"):
                node[keyword] = [
                    self.node(item, (*place, keyword, number), (*out, keyword, number), active)
                    for number, item in enumerate(value)
                ]
            elif keyword in _SINGLES and (
                isinstance(value, dict) or (keyword == "items" and isinstance(value, bool))
            ):
                node[keyword] = self.node(value, (*place, keyword), (*out, keyword), active)

    def names_properties(self, node: JsonObject, place: Pointer, out: Pointer) -> None:
        form = self.form
        properties = node.get("properties")
        if form.closed:
            if node.get("additionalProperties", False) is not False or (
                out and not properties and "additionalProperties" not in node
            ):
                raise _DoesNotFit(f"it has an open object{_at(place)}")
            node.setdefault("properties", {})
        elif form.object_properties and out and not properties:
            raise _DoesNotFit(f"it has an object without named properties{_at(place)}")

    def requires(self, node: JsonObject, place: Pointer, out: Pointer) -> None:
        form = self.form
        properties = node.get("properties", {})
        required = node.get("required", [])
        unknown = [name for name in required if name not in properties]
        if unknown and (form.known_required or form.closed):
            node["required"] = required = [name for name in required if name in properties]
            self.lose(place, "required", f"{', '.join(map(short, unknown[:5]))} is no property")
        if form.all_required:
            for name, item in properties.items():
                where = (*out, "properties", name)
                if _takes_null(item):
                    self.null_kept.add(_in_value(where))
                elif name not in required:
                    properties[name] = _or_null(item)
                    self.nullable.append(where)
            node["required"] = list(properties)
        if form.closed:
            node["additionalProperties"] = False

    # -- references and conjunctions ------------------------------------------------------------------------

    def opened(
        self, schema: JsonObject, place: Pointer, active: frozenset[str], *, always: bool = False
    ) -> tuple[JsonObject, frozenset[str]]:
        """The node with its references and conjunctions written out, where the form needs it, or always."""
        self.count()
        node = dict(schema)
        while "$ref" in node and (self.form.write_out or always):
            reference = node.pop("$ref")
            target = self.target(reference)
            if target is None:
                self.lose(place, "$ref", f"{short(reference)} leads nowhere in this schema")
            elif reference in active:
                if self.form.closed:
                    raise _DoesNotFit(f"it refers to itself{_at(place)}")
                self.lose(place, "$ref", "refers to itself; cut here")
                node = {**{key: target[key] for key in ("type", "description") if key in target}, **node}
            else:
                active = active | {reference}
                self.lose(place, "$ref", "written out in place")
                node = self.both(node, target, place)
        if "allOf" in node and (always or not self.takes("allOf")):
            self.lose(place, "allOf", "its parts were merged")
            within = active
            for part in node.pop("allOf"):
                if isinstance(part, dict):
                    if "if" in part:  # two conditions side by side are not one condition
                        self.lose(place, "if", "a condition inside allOf cannot be merged")
                        part = {key: value for key, value in part.items() if key not in _CONDITION}
                    opened, inside = self.opened(part, place, active, always=always)
                    within = within | inside
                    node = self.both(node, opened, place)
            active = within
        return node, active

    def count(self) -> None:
        self.nodes += 1
        if self.nodes > NODES_MAX:
            # Attack: a few references to each other that grow without bound when they are written out.
            raise _DoesNotFit("its schema is too large when references are written out")

    def target(self, reference: str) -> JsonValue:
        """What a reference leads to inside this document; None where there is no schema."""
        if reference not in self.targets:
            self.targets[reference] = self.look_up(reference)
        return self.targets[reference]

    def look_up(self, reference: str) -> JsonValue:
        if not reference.startswith("#"):
            return None
        nodes = [node for _, node in walk(self.root) if isinstance(node, dict)]
        anchors = {(id(self.root), str(node["$anchor"])): node for node in nodes if "$anchor" in node}
        value = target_of(self.root, reference, anchors)
        return value if isinstance(value, dict) and meta_validator(DRAFT).is_valid(value) else None

    def both(self, first: JsonObject, second: JsonObject, place: Pointer) -> JsonObject:
        """One node that says what two say; where that is impossible the first one wins, reported."""
        merged = dict(first)
        for keyword, value in second.items():
            if keyword not in merged or keyword in _ANNOTATIONS or merged[keyword] == value:
                merged.setdefault(keyword, value)
                continue
            mine = merged[keyword]
            if keyword == "properties":
                merged[keyword] = {
                    name: {"allOf": [mine[name], value[name]]} if name in mine and name in value else item
                    for name, item in {**value, **mine}.items()
                }
            elif keyword in ("$defs", "definitions"):
                merged[keyword] = {**value, **mine}
            elif keyword == "required":
                merged[keyword] = list(dict.fromkeys([*mine, *value]))
            elif keyword == "allOf":
                merged[keyword] = [*mine, *value]
            elif keyword in _LARGER:
                merged[keyword] = max(mine, value)
            elif keyword in _SMALLER:
                merged[keyword] = min(mine, value)
            elif keyword in _SINGLES:
                parts = [part for part in (mine, value) if part is not True]
                one = parts[0] if len(parts) == 1 else {"allOf": parts}
                merged[keyword] = False if False in parts else one
            else:
                common = _common(keyword, mine, value)
                if common:
                    merged[keyword] = common
                else:
                    self.lose(place, keyword, "stands twice and cannot be merged; the first one is kept")
        return merged

    def one_object(
        self, node: JsonObject, keyword: str, place: Pointer, active: frozenset[str]
    ) -> JsonObject:
        """Alternatives as one object: all their properties, required only what each of them requires."""
        merged = {key: value for key, value in node.items() if key != keyword}
        arms = []
        for arm in node[keyword]:
            if isinstance(arm, dict):
                opened, inside = self.opened(arm, place, active, always=True)
                for inner in _ALTERNATIVES:
                    if inner in opened:
                        opened = self.one_object(opened, inner, place, inside)
                if "object" in _type_list(opened) or "type" not in opened:
                    arms.append(opened)
        if arms:
            properties = dict(merged.get("properties", {}))
            for arm in arms:
                for name, item in arm.get("properties", {}).items():
                    properties[name] = _either(properties[name], item) if name in properties else item
            required = set.intersection(*(set(arm.get("required", ())) for arm in arms))
            required.update(merged.get("required", ()))
            if properties:
                merged["properties"] = properties
            if required:
                ranks = {
                    name: rank for rank, name in enumerate(dict.fromkeys([*properties, *sorted(required)]))
                }
                merged["required"] = sorted(required, key=ranks.__getitem__)
        self.lose(place, keyword, f"its {len(node[keyword])} alternatives are offered as one object")
        return merged


def _bounded(document: JsonValue) -> None:
    level = [document]
    depth = nodes = 0
    while level:
        depth += 1
        nodes += len(level)
        if depth > DEPTH_MAX or nodes > NODES_MAX:
            raise _DoesNotFit("its schema is too large")
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, (dict, list))
        ]


def _rewritten(schema: JsonValue) -> JsonValue:
    """Keywords of older drafts in the words of 2020-12: tuples, and bounds that were switches."""
    if isinstance(schema, list):
        return [_rewritten(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    node = dict(schema)
    if isinstance(node.get("items"), list):
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    for switch, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(node.get(switch), bool) and node.pop(switch) and bound in node:
            node[switch] = node.pop(bound)
    for keyword, value in node.items():
        if keyword in _MAPS and isinstance(value, dict):
            node[keyword] = {name: _rewritten(item) for name, item in value.items()}
        elif keyword in _SINGLES or keyword in _LISTS:
            node[keyword] = _rewritten(value)
    return node


def _measure(document: JsonObject, limits: Limits) -> None:
    properties = values = chars = deepest = 0
    stack: list[tuple[JsonValue, int]] = [(document, 0)]
    while stack:
        node, depth = stack.pop()
        if not isinstance(node, dict):
            continue
        depth += not {"object", "array"}.isdisjoint(_type_list(node))
        deepest = max(deepest, depth)
        names = node.get("properties", {})
        properties += len(names)
        enum = node.get("enum", [])
        values += len(enum)
        texts = [value for value in (*enum, node.get("const")) if isinstance(value, str)]
        chars += sum(map(len, names)) + sum(map(len, texts))
        if len(enum) > limits.long_enum and sum(map(len, texts)) > limits.long_enum_chars:
            raise _DoesNotFit(f"it has an enum of more than {limits.long_enum_chars} characters")
        stack.extend((item, depth) for item in (*names.values(), node.get("items"), *node.get("anyOf", ())))
    for what, count, most in (
        ("levels", deepest, limits.depth),
        ("properties", properties, limits.properties),
        ("enum values", values, limits.enum_values),
        ("characters in names and values", chars, limits.string_chars),
    ):
        if count > most:
            raise _DoesNotFit(f"it has {count} {what}, more than {most}")


def _in_value(pointer: Pointer) -> Pointer:
    """An address in a schema as the address in the values it describes; items of an array are 0."""
    steps: list[str | int] = []
    rest = list(pointer)
    while rest:
        keyword = rest.pop(0)
        if keyword == "properties":
            steps.append(rest.pop(0))
        elif keyword == "items":
            steps.append(0)
        else:  # anyOf and its number: the same value
            rest.pop(0)
    return tuple(steps)


def _takes_null(schema: JsonObject) -> bool:
    if "enum" in schema or "const" in schema:
        return None in schema.get("enum", ()) or schema.get("const", 0) is None
    if "anyOf" in schema:
        return any(_takes_null(arm) for arm in schema["anyOf"])
    return "null" in _type_list(schema)


def _or_null(schema: JsonObject) -> JsonObject:
    if "enum" not in schema and "const" not in schema:
        if "anyOf" in schema:
            return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
        return {**schema, "type": [*_type_list(schema), "null"]}
    # A null beside an enum that does not list it would be refused: the null stands as an alternative.
    outside = {key: value for key, value in schema.items() if key in ("description", "title")}
    inside = {key: value for key, value in schema.items() if key not in outside}
    return {**outside, "anyOf": [inside, {"type": "null"}]}


def _is_null(schema: JsonValue) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _type_list(node: JsonObject) -> list[str]:
    types = node.get("type", [])
    return list(types) if isinstance(types, list) else [types]


def _common(keyword: str, mine: JsonValue, other: JsonValue) -> JsonValue:
    """What two values of a keyword have in common; None where that cannot be said."""
    if keyword == "enum":
        theirs = {compact(value) for value in other}
        return [value for value in mine if compact(value) in theirs] or None
    if keyword == "type":
        first, second = (value if isinstance(value, list) else [value] for value in (mine, other))
        common = [name for name in first if name in second or (name == "integer" and "number" in second)]
        common += [name for name in second if name == "integer" and "number" in first and name not in common]
        return common[0] if len(common) == 1 else common or None
    return None


def _either(first: JsonValue, second: JsonValue) -> JsonValue:
    arms = first["anyOf"] if isinstance(first, dict) and first.keys() == {"anyOf"} else [first]
    return first if second in arms else {"anyOf": [*arms, second]}


_BEYOND_LINEAR: Final = re.compile(r"\\[pP0]")


@lru_cache(maxsize=1024)
def _regular(pattern: str, wanted: Patterns) -> bool:
    if wanted is Patterns.ANY:
        return True
    if len(pattern) > PATTERN_CHARS_MAX:
        return False
    try:
        compile_schema({"pattern": pattern})
    except (jsonschema_rs.ValidationError, ValueError):
        if wanted is Patterns.LINEAR:
            return False
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            return False
        return True
    return wanted is Patterns.VALID or not _BEYOND_LINEAR.search(pattern.replace(r"\\", ""))


def _told(keyword: str, value: JsonValue) -> str:
    return f"{keyword}: {cut(compact(value).decode('utf-8'), _TOLD_CHARS_MAX)}"


def _with(description: str | None, told: list[str]) -> str:
    return f"{description} ({'; '.join(told)})" if description else "; ".join(told)


def _at(place: Pointer) -> str:
    return f" at {place_text(place)}" if place else ""
