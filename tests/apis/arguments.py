"""Arguments that fit a schema, taken from a seeded generator: odd characters, empty lists and all."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.apis.documents import PATTERNS
from toolcrib.model import Schema
from toolcrib.schema import fits

_TEXTS = (
    "a", "two words", "with/slash", "ümläut", "日本語", "q&a=1", "100%", "a+b", "semi;colon", "#hash", "?",
    "[x]", "quote\"'", "%2F%2e", "tab\tin", "ñ" * 10, "😀", "null", "true", "0", "-1", "1.5", "~user",
    "x:y@z", "", "a.b", "line\nbreak",
)  # fmt: skip
_PLAIN = ("alpha", "beta-2", "C_3", "delta.4")


class Arguments:
    """One generator for one schema."""

    def __init__(self, schema: Schema, random: Random) -> None:
        self.schema = schema
        self.root = schema.document
        self.random = random

    def some(self) -> dict[str, Any]:
        for attempt in range(60):
            made = self.value(self.root, 0 if attempt < 40 else 2)
            if isinstance(made, dict) and fits(self.schema, made):
                return made
        raise AssertionError(f"nothing fits {self.root}")

    def value(self, schema: Any, depth: int) -> Any:
        random = self.random
        if schema is True or schema == {}:
            return random.choice([1, "x", True, None])
        if "$ref" in schema:
            beside = {key: item for key, item in schema.items() if key != "$ref"}
            return self.value({**self.root["$defs"][schema["$ref"].rpartition("/")[2]], **beside}, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return random.choice(schema["enum"])
        for key in ("oneOf", "anyOf"):
            if key in schema:
                flat = [one for one in schema[key] if depth < 4 or "$ref" not in str(one)]
                return self.value(random.choice(flat or schema[key]), depth + 1)
        if "allOf" in schema:
            whole: Any = None
            for one in schema["allOf"]:
                part = self.value(one, depth)
                whole = {**whole, **part} if isinstance(whole, dict) and isinstance(part, dict) else part
            return whole
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = random.choice(kind)
        return getattr(self, f"_{kind}")(schema, depth)

    def _null(self, schema: Any, depth: int) -> None:
        return None

    def _boolean(self, schema: Any, depth: int) -> bool:
        return self.random.random() < 0.5

    def _integer(self, schema: Any, depth: int) -> int:
        low = schema.get("minimum", schema.get("exclusiveMinimum", -101) + 1)
        return self.random.randint(low, schema.get("maximum", max(low, 0) + 10**6))

    def _number(self, schema: Any, depth: int) -> float:
        return round(self.random.uniform(schema.get("minimum", -10), schema.get("maximum", 10)), 3)

    def _string(self, schema: Any, depth: int) -> str:
        if "pattern" in schema:
            return self.random.choice(PATTERNS[schema["pattern"]])
        if schema.get("contentEncoding") == "base64":
            return self.random.choice(["", "AAEC/w==", "aGVsbG8="])
        low, high = schema.get("minLength", 0), schema.get("maxLength", 1000)
        found = self.random.choice(_TEXTS if self.random.random() < 0.6 else _PLAIN)
        made: str = (found + "x" * max(0, low - len(found)))[:high]
        return made

    def _array(self, schema: Any, depth: int) -> list[Any]:
        low = schema.get("minItems", 0)
        count = low if depth > 3 else self.random.randint(low, min(schema.get("maxItems", low + 3), low + 3))
        first = schema.get("prefixItems", [])
        return [
            self.value(first[number] if number < len(first) else schema.get("items", {}), depth + 1)
            for number in range(count)
        ]

    def _object(self, schema: Any, depth: int) -> dict[str, Any]:
        made = {}
        required = schema.get("required", ())
        chance = 0.7 if depth == 0 else 0.5 if depth < 3 else 0.0
        for name, one in schema.get("properties", {}).items():
            if name in required or self.random.random() < chance:
                made[name] = self.value(one, depth + 1)
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict) and depth < 4:
            for key in self.random.sample(["key", "two words", "ü"], self.random.randint(0, 2)):
                made[key] = self.value(extra, depth + 1)
        if len(made) < schema.get("minProperties", 0):
            name, one = next(iter(schema["properties"].items()))
            made[name] = self.value(one, depth + 1)
        return made
