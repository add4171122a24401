"""Find probable mistakes in a valid JSON Schema: misspelt keywords, and required names without a property.

A validator accepts both. A misspelt keyword restricts nothing, and a model cannot know what to send for a
name without a property. Places where no keyword is expected are left alone: names of properties, ``enum``,
``const``, ``default``, examples and extensions. This module also knows under which keys other formats keep
the schema of a tool's arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from toolcrib.formats._node import Guesses, Node, Reader, fold, shown
from toolcrib.jsontext import JsonObject, JsonValue, Pointer
from toolcrib.model import Fix, FixPart

MISSPELT: Final = "schema.keyword-misspelt"
UNDEFINED: Final = "schema.required-undefined"

_WORD_CHARS_MAX: Final = 40
_NAMES_MAX: Final = 200
"""A required name is compared with so many properties at most."""

_NAMED_MAX: Final = 5

_TEXT: Final = (str,)
_LIST: Final = (list,)
_OBJECT: Final = (dict,)
_FLAG: Final = (bool,)
_NUMBER: Final = (int, float)
_SCHEMA: Final = (dict, bool)
_ANY: Final = (str, int, float, bool, list, dict, type(None))

KEYWORDS: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(
        ("title", "description", "pattern", "format", "contentEncoding", "contentMediaType", "$schema", "$id",
         "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "$comment"), _TEXT
    ),
    **dict.fromkeys(("enum", "examples", "allOf", "anyOf", "oneOf", "prefixItems"), _LIST),
    **dict.fromkeys(
        ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependentRequired",
         "dependencies"), _OBJECT
    ),
    **dict.fromkeys(
        ("additionalProperties", "unevaluatedProperties", "propertyNames", "additionalItems",
         "unevaluatedItems", "contains", "contentSchema", "not", "if", "then", "else"), _SCHEMA
    ),
    **dict.fromkeys(
        ("minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems",
         "minProperties", "maxProperties", "minContains", "maxContains"), _NUMBER
    ),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly", "nullable"), _FLAG),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (int, float, bool)),
    **dict.fromkeys(("default", "const"), _ANY),
    "type": (str, list),
    "required": (list, bool),
    "items": (dict, list, bool),
}  # fmt: skip
"""The keywords, each with the types of values it takes: a word with a value of another type means something
else."""
_OTHERS: Final = frozenset(
    {
        "id", "$vocabulary", "$recursiveRef", "$recursiveAnchor", "divisibleBy", "extends", "disallow",
        "example", "discriminator", "xml", "externalDocs", "enumNames", "enumDescriptions",
        "markdownDescription",
    }
)  # fmt: skip
"""Words of older drafts and of other readers."""
_KNOWN: Final = frozenset(KEYWORDS) | _OTHERS
_ANNOTATIONS: Final = frozenset(
    {
        "title", "description", "$comment", "$schema", "$id", "examples", "default", "deprecated", "readOnly",
        "writeOnly", *_OTHERS,
    }
)  # fmt: skip
"""Keywords that restrict nothing. Other parts of a document have members of the same names."""
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_BELOW: Final = (
    "items", "prefixItems", "additionalProperties", "additionalItems", "unevaluatedProperties",
    "unevaluatedItems", "contains", "contentSchema",
)  # fmt: skip
_BESIDE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
"""What says more about the same value: the names that it requires may be described elsewhere."""
_DESCRIBING: Final = frozenset(
    {*_BESIDE, "$ref", "$dynamicRef", "$recursiveRef", "extends", "dependencies", "patternProperties"}
)
"""Beside one of these, an object may have properties that it does not list itself."""
_DEFINITIONS: Final = ("$defs", "definitions")
_COMMON: Final = frozenset(
    {
        "type", "properties", "required", "items", "description", "title", "enum", "default", "format",
        "examples", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems",
        "$schema",
    }
)  # fmt: skip
"""Keywords that most schemas get along with."""


class Finding(NamedTuple):
    """One probable mistake, at a place inside the schema."""

    code: str
    pointer: Pointer
    what: str
    hint: str
    fix: Fix | None = None


class Required(Enum):
    """Where required names are compared with the properties. Some formats have a rule of their own."""

    EVERYWHERE = "everywhere"
    BELOW = "below"
    """Not in the schema of the arguments itself."""
    NOWHERE = "nowhere"


def report(
    node: Node,
    name: str | None = None,
    *,
    required: Required = Required.EVERYWHERE,
    fixable: bool = True,
) -> None:
    """Warn of every probable mistake in the schema at a node."""
    for found in look(node.value, node.reader, required=required):
        place = Node(node.reader, None, (*node.pointer, *found.pointer))
        place.warn(found.code, found.what, name=name, hint=found.hint, fix=found.fix if fixable else None)


def look(schema: JsonValue, reader: Reader, *, required: Required = Required.EVERYWHERE) -> Iterator[Finding]:
    """Yield every probable mistake in a schema."""
    if isinstance(schema, dict) and not _is_plain(schema):
        yield from _in_parts(schema, reader, required)


def _is_plain(schema: JsonObject) -> bool:
    """Return whether there is certainly nothing to find, which is so for most schemas."""
    waiting: list[JsonValue] = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        if not _COMMON.issuperset(part):
            return False
        properties = part.get("properties", {})
        if not isinstance(properties, dict):
            return False
        names = part.get("required", ())
        if names and (not isinstance(names, list) or any(name not in properties for name in map(str, names))):
            return False
        waiting += properties.values()
        waiting.append(part.get("items"))
    return True


def _in_parts(schema: JsonObject, reader: Reader, required: Required) -> Iterator[Finding]:
    composed: frozenset[str] | None = None
    waiting: list[tuple[JsonValue, Pointer, bool]] = [(schema, (), True)]
    while waiting:
        part, pointer, is_whole = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield from _misspelt_in(part, pointer, reader)
        is_asked = required is Required.EVERYWHERE or (required is Required.BELOW and pointer)
        if is_asked and is_whole and (missing := [*undefined(part)]):
            if composed is None:
                composed = frozenset(_composed(schema))
            if _reference(pointer) not in composed:
                for number, name in missing:
                    yield _not_defined(part, (*pointer, "required", number), name, reader)
        waiting += reversed([*_parts(part, pointer)])


def _parts(part: JsonObject, pointer: Pointer) -> Iterator[tuple[JsonValue, Pointer, bool]]:
    """Yield the schemas right below one, each with whether it describes a value of its own."""
    for key, value in part.items():
        is_whole = key not in _BESIDE
        if key in _MAPS and isinstance(value, dict):
            yield from ((inner, (*pointer, key, name), is_whole) for name, inner in value.items())
        elif (key in _BELOW or key in _BESIDE) and isinstance(value, list):
            yield from ((inner, (*pointer, key, number), is_whole) for number, inner in enumerate(value))
        elif key in _BELOW or key in _BESIDE:
            yield value, (*pointer, key), is_whole


def is_schema(value: JsonObject, guesses: Guesses) -> bool:
    """Return whether an object that a reference leads to can be a schema: it restricts something, if only by
    a misspelt keyword, or has no member that schemas do not have, extensions apart."""
    is_strange = False
    for key, member in value.items():
        if key in KEYWORDS and key not in _ANNOTATIONS and isinstance(member, KEYWORDS[key]):
            if key != "required" or isinstance(member, list):
                return True
        elif key not in _KNOWN and not key.startswith("x-"):
            if keywords_meant(key, member, value, guesses):
                return True
            is_strange = True
    return not is_strange


# -- names that are required --------------------------------------------------------------------------------


def undefined(part: JsonObject) -> Iterator[tuple[int, str]]:
    """Yield the names that an object requires and nothing describes, each with its place in the list."""
    names, properties = part.get("required"), part.get("properties")
    if not isinstance(names, list) or not part.keys().isdisjoint(_DESCRIBING):
        return
    if isinstance(part.get("additionalProperties"), dict):  # which describes every other name
        return
    if properties is None:
        if part.get("type") != "object":
            return
        properties = {}
    if isinstance(properties, dict):
        for number, name in enumerate(names):
            if isinstance(name, str) and name not in properties:
                yield number, name


def _not_defined(part: JsonObject, pointer: Pointer, name: str, reader: Reader) -> Finding:
    properties = part.get("properties") or {}
    meant = ""
    if len(properties) <= _NAMES_MAX and reader.guesses.more():
        meant = Node(reader, None, ()).did_you_mean(name, properties)
    return Finding(UNDEFINED, pointer, undefined_words(name) + meant, UNDEFINED_HINT)


def undefined_words(*names: str) -> str:
    """Return the message about names that are required and that no property describes."""
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    verb = "is" if len(names) == 1 else "are"
    return f"{', '.join(map(shown, names[:_NAMED_MAX]))}{more} {verb} required and not among the properties"


UNDEFINED_HINT: Final = "describe it in properties, or take it out of required"


def _composed(schema: JsonObject) -> Iterator[str]:
    """Yield the references to schemas that are parts of others, which may describe what they require."""
    waiting: list[tuple[JsonValue, bool]] = [(schema, True)]
    while waiting:
        part, is_whole = waiting.pop()
        if isinstance(part, dict):
            reference = part.get("$ref")
            if isinstance(reference, str) and (not is_whole or not part.keys().isdisjoint(COMPOSING)):
                yield reference
            waiting += ((inner, whole) for inner, _, whole in _parts(part, ()))


COMPOSING: Final = frozenset({"properties", *_BESIDE})
"""Beside a reference, one of these may describe what the other schema requires."""


def _reference(pointer: Pointer) -> str:
    """Return how references spell a definition; empty: the place is none."""
    if len(pointer) != 2 or pointer[0] not in _DEFINITIONS:
        return ""
    name = str(pointer[1]).replace("~", "~0").replace("/", "~1")
    return f"#/{pointer[0]}/{name}"


# -- words that are nearly keywords -------------------------------------------------------------------------


def _misspelt_in(part: JsonObject, pointer: Pointer, reader: Reader) -> Iterator[Finding]:
    """Yield the misspelt keywords of one schema. A fix is offered only if the keyword is free and no other
    word of the schema was meant to be the same one."""
    slips: dict[str, list[str]] = {}
    for key, value in part.items():
        if key not in _KNOWN and (meant := keywords_meant(key, value, part, reader.guesses)):
            slips[key] = meant
    wanted = Counter(word for meant in slips.values() for word in meant)
    for key, meant in slips.items():
        what, hint = misspelt_words(meant, part)
        is_free = len(meant) == 1 and meant[0] not in part and wanted[meant[0]] == 1
        fix = _renaming(reader, key, meant[0]) if is_free else None
        yield Finding(MISSPELT, (*pointer, key), what, hint, fix)


def misspelt_words(meant: Sequence[str], part: JsonObject) -> tuple[str, str]:
    """Return the message and the hint about a key of ``part`` that was probably meant to be one of these
    keywords."""
    named = " or ".join(f'"{word}"' for word in meant)
    fix = f"write {named}"
    if any(word in part for word in meant):
        fix = f"{named} is there too: move what is missing there, and remove this key"
    return f"not a keyword of JSON Schema (did you mean {named}?)", f"nothing reads it as it is; {fix}"


def _renaming(reader: Reader, key: str, new: str) -> Fix:
    """Return the fix that renames a key of the document."""
    if reader.path.endswith(".json"):
        return Fix(part=FixPart.KEY, new=f'"{new}"')
    return Fix(old=key, new=new)


def keywords_meant(key: str, value: JsonValue, part: JsonObject, guesses: Guesses) -> list[str]:
    """Return the keywords that a key of a schema was probably meant to be: those that are nearly spelt so
    and take a value of this type. If some of them are absent, the present ones are not meant."""
    if key in _KNOWN or key.startswith("x-") or len(key) > _WORD_CHARS_MAX:
        return []
    if not guesses.more():
        return []
    near = [word for word in _near(key) if _takes(word, value)]
    absent = [word for word in near if word not in part]
    return absent or [word for word in near if not _is_own_word(key, word)]


def _is_own_word(key: str, word: str) -> bool:
    """Return whether a key beside the keyword that it resembles is more likely a word of the author's own:
    its plural, its singular or its short form."""
    return fold(key) in _OTHER_FORMS or fold(key) == fold(word) + "s"


def _takes(word: str, value: JsonValue) -> bool:
    kinds = KEYWORDS[word]
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)


_FOLDED: Final = {fold(word): word for word in KEYWORDS}
_OTHER_FORMS: Final = {
    "types": "type", "enums": "enum", "item": "items", "property": "properties",
    "additionalproperty": "additionalProperties", "typ": "type", "desc": "description",
    "descr": "description",
}  # fmt: skip
"""Common mistakes that differ in more letters, or in words that are too short to guess at."""
_SHORT_CHARS_MAX: Final = 5
_LONG_CHARS_MIN: Final = 10


@lru_cache(maxsize=1024)
def _near(key: str) -> tuple[str, ...]:
    """Return the keywords that differ from a word by a slip: one letter, two of a long word; of a short one
    only swapped or doubled letters, since most short words are words of their own."""
    word = fold(key)
    exact = _FOLDED.get(word) or _OTHER_FORMS.get(word)
    if exact is not None:
        return (exact,)
    return tuple(keyword for folded, keyword in _FOLDED.items() if _is_slip(word, folded))


def _is_slip(word: str, known: str) -> bool:
    if len(known) <= _SHORT_CHARS_MAX:
        if len(known) < 4:
            return False
        doubled = any(word == known[:at] + known[at] + known[at:] for at in range(len(known)))
        return doubled or (sorted(word) == sorted(known) and _distance(word, known) == 1)
    limit = 2 if len(known) >= _LONG_CHARS_MIN else 1
    if abs(len(word) - len(known)) > limit or len({*word} ^ {*known}) > 2 * limit:
        return False
    return _distance(word, known) <= limit


def _distance(one: str, two: str) -> int:
    """Return how many letters have to be put in, taken out, changed or swapped with the next."""
    before: list[int] = []
    above: list[int] = [*range(len(two) + 1)]
    for row, letter in enumerate(one, 1):
        here = [row]
        for column, other in enumerate(two, 1):
            cost = min(above[column] + 1, here[column - 1] + 1, above[column - 1] + (letter != other))
            is_swap = row > 1 and column > 1 and letter == two[column - 2] and one[row - 2] == other
            here.append(min(cost, before[column - 2] + 1) if is_swap else cost)
        before, above = above, here
    return above[-1]


# -- the schema under another format's key ------------------------------------------------------------------

_KEYS: Final = frozenset(
    map(fold, ("schema", "parameters", "params", "inputSchema", "jsonSchema", "argsSchema", "arguments"))
)


def is_schema_key(key: str, holder: JsonObject, own: str) -> bool:
    """Return whether a key of a tool holds the schema of its arguments, under the word of another format.
    ``own`` is the key that this format expects, which must be absent."""
    return key != own and own not in holder and isinstance(holder[key], dict) and fold(key) in _KEYS


def schema_key_fix(key: str, holder: Node, own: str) -> Fix | None:
    """Return the fix for such a key; None if there are several, and any of them may count."""
    found = list(islice((each for each in holder.value if is_schema_key(each, holder.value, own)), 2))
    return _renaming(holder.reader, key, own) if found == [key] else None


def schema_key_hint(key: str, own: str) -> str:
    return f'this format expects the schema of the arguments under "{own}"; nothing reads {shown(key)}'
