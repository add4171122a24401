"""A judge of requests: reads each by the document's own words and says what is wrong with it.

Written from the specification, not from the code it judges: it takes raw bytes apart by the parameters'
styles, turns texts into values by the schemas, and validates them with a JSON Schema library.
"""

from __future__ import annotations

import base64
import copy
import email
import email.policy
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, unquote_plus

import jsonschema_rs


class Wrong(Exception):
    """The request does not fit the document."""


class Checker:
    """One document, ready to judge requests below a base path."""

    def __init__(self, document: dict[str, Any], base_path: str) -> None:
        self.document = document
        self.base_path = base_path.rstrip("/")
        self.is_3_0 = document["openapi"].startswith("3.0")
        self.components = _for_requests(copy.deepcopy(document["components"]), self.is_3_0)
        self.routes = [
            (re.compile(self._expression(path)), method, path)
            for path, item in document["paths"].items()
            for method in item
            if method != "parameters"
        ]

    def _expression(self, path: str) -> str:
        parts = re.split(r"\{([^}]+)\}", path)
        made = ""
        for number, part in enumerate(parts):
            made += re.escape(part) if number % 2 == 0 else f"(?P<{_group(part)}>[^/]*?)"
        return re.escape(self.base_path) + made

    # -- one request ----------------------------------------------------------------------------------------

    def check(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes
    ) -> tuple[str, dict[str, Any]]:
        """The operation (``GET /path``) and what it was told, as texts; raises Wrong."""
        raw_path, _, raw_query = target.partition("?")
        if not target.isascii() or " " in target or "#" in target:
            raise Wrong(f"not a request target: {target}")
        found = [
            (match, path)
            for expression, verb, path in self.routes
            if verb == method.lower() and (match := expression.fullmatch(raw_path))
        ]
        if not found:
            raise Wrong(f"no operation {method} {raw_path}")
        # Literal paths win over those with marks, as in the specification.
        match, path = min(found, key=lambda pair: (pair[1].count("{"), -len(pair[1])))
        item = self.document["paths"][path]
        operation = item[method.lower()]
        parameters = {}
        for one in [*item.get("parameters", []), *operation.get("parameters", [])]:
            one = self.resolve(one)
            parameters[one["in"], one["name"]] = one
        told: dict[str, Any] = {}
        pairs = [
            (name, value) for name, _, value in (one.partition("=") for one in raw_query.split("&") if one)
        ]
        left = {unquote(name) for name, _ in pairs}
        for (place, name), parameter in parameters.items():
            if place == "header" and name.lower() in ("accept", "content-type", "authorization"):
                continue
            value, used = self.read(place, parameter, match, pairs, headers)
            left -= used
            if value is None:
                if parameter.get("required"):
                    raise Wrong(f"{place} parameter {name} is missing")
                continue
            told[f"{place} {name}"] = self.fit(value, self.schema_of(parameter), f"{place} {name}")
        if left:
            raise Wrong(f"unknown query parameters {sorted(left)}")
        told |= self.body(operation, headers, body)
        return f"{method} {path}", told

    def resolve(self, value: Any) -> Any:
        while isinstance(value, dict) and "$ref" in value:
            target: Any = {"components": self.components}
            for step in value["$ref"].removeprefix("#/").split("/"):
                target = target[step.replace("~1", "/").replace("~0", "~")]
            value = target
        return value

    def schema_of(self, holder: Any) -> Any:
        schema = holder["schema"] if "schema" in holder else next(iter(holder["content"].values()))["schema"]
        return _for_requests(copy.deepcopy(schema), self.is_3_0)

    # -- parameters by their styles -------------------------------------------------------------------------

    def read(
        self,
        place: str,
        parameter: Any,
        match: re.Match[str],
        pairs: list[tuple[str, str]],
        headers: list[tuple[str, str]],
    ) -> tuple[Any, set[str]]:
        """The value as texts, lists and objects of texts; None where it is absent."""
        name = parameter["name"]
        schema = self.schema_of(parameter)
        style = parameter.get("style", "form" if place in ("query", "cookie") else "simple")
        explode = parameter.get("explode", style == "form")
        kinds = self.kinds(schema)
        if place == "path":
            raw = match[_group(name)]
            if not raw:
                raise Wrong(f"path parameter {name} is empty")
            return self.from_path(raw, name, style, explode, kinds), set()
        if place == "header":
            values = [value for key, value in headers if key.lower() == name.lower()]
            if not values:
                return None, set()
            if len(values) > 1:
                raise Wrong(f"header {name} is repeated")
            return _simple(values[0], explode, kinds, lambda text: text), set()
        if place == "cookie":
            jar = [
                pair.strip().partition("=")
                for key, value in headers
                if key == "Cookie"
                for pair in value.split(";")
            ]
            values = [unquote(value) for key, _, value in jar if key == name]
            return (values if "array" in kinds else values[0]) if values else None, set()
        if "content" in parameter:
            mine = [unquote(value) for key, value in pairs if unquote(key) == name]
            return (_Json(json.loads(mine[0])), {name}) if mine else (None, set())
        if style == "deepObject":
            return _deep([(unquote(key), unquote(value)) for key, value in pairs], name)
        if explode and "object" in kinds:
            known = self.resolve(schema).get("properties", {})
            mine_too = {unquote(key): unquote(value) for key, value in pairs if unquote(key) in known}
            return mine_too or None, set(mine_too)
        mine = [value for key, value in pairs if unquote(key) == name]
        if not mine:
            return None, set()
        if explode:
            values = [unquote(value) for value in mine]
            if "array" not in kinds and len(values) > 1:
                raise Wrong(f"query parameter {name} is repeated")
            return values if "array" in kinds else values[0], {name}
        delimiter = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}[style]
        if kinds & {"array", "object"}:
            items = [unquote(one) for one in mine[0].split(delimiter)]
            return items if "array" in kinds else dict(zip(items[::2], items[1::2], strict=True)), {name}
        return unquote(mine[0]), {name}

    def from_path(self, raw: str, name: str, style: str, explode: bool, kinds: set[str]) -> Any:
        if style == "simple":
            return _simple(raw, explode, kinds, unquote)
        if style == "label":
            if not raw.startswith("."):
                raise Wrong(f"path parameter {name} must begin with a dot")
            return _simple(raw[1:].replace(".", ",") if explode else raw[1:], explode, kinds, unquote)
        if not raw.startswith(";"):
            raise Wrong(f"path parameter {name} must begin with a semicolon")
        pairs = [part.partition("=")[::2] for part in raw[1:].split(";")]
        if explode and "array" in kinds:
            if any(unquote(key) != name for key, _ in pairs):
                raise Wrong(f"path parameter {name}: {raw}")
            return [unquote(value) for _, value in pairs]
        if explode and "object" in kinds:
            return {unquote(key): unquote(value) for key, value in pairs}
        return _simple(pairs[0][1], False, kinds, unquote)

    # -- bodies ---------------------------------------------------------------------------------------------

    def body(self, operation: Any, headers: list[tuple[str, str]], content: bytes) -> dict[str, Any]:
        kinds = [value for name, value in headers if name.lower() == "content-type"]
        if "requestBody" not in operation:
            if content or kinds:
                raise Wrong("a body that nobody asked for")
            return {}
        wanted = self.resolve(operation["requestBody"])
        if not kinds:
            if wanted.get("required") or content:
                raise Wrong("no body")
            return {}
        kind = kinds[0].partition(";")[0]
        if len(kinds) > 1 or kind not in wanted["content"]:
            raise Wrong(f"media types {kinds}")
        media = wanted["content"][kind]
        schema = self.schema_of(media)
        if kind == "application/json":
            value: Any = _Json(json.loads(content))
        elif kind == "text/plain":
            value = content.decode("utf-8")
        elif kind == "application/octet-stream":
            return {"body": base64.b64encode(content).decode()}
        elif kind == "application/x-www-form-urlencoded":
            value = self.form(content.decode("ascii"), media, schema)
        else:
            value = self.parts(kinds[0], content, schema)
        return {"body": self.fit(value, schema, "body")}

    def form(self, content: str, media: Any, schema: Any) -> dict[str, Any]:
        pairs = [
            (unquote_plus(key), unquote_plus(value))
            for key, _, value in (one.partition("=") for one in content.split("&") if one)
        ]
        made: dict[str, Any] = {}
        used: set[str] = set()
        for name, one in self.resolve(schema)["properties"].items():
            if media.get("encoding", {}).get(name, {}).get("style") == "deepObject":
                value, keys = _deep(pairs, name)
                used |= keys
            else:
                values = [value for key, value in pairs if key == name]
                used |= {name} if values else set()
                kinds = self.kinds(one)
                value = (values if "array" in kinds else values[0]) if values else None
            if value is not None:
                made[name] = value
        unknown = {key for key, _ in pairs} - used
        if unknown:
            raise Wrong(f"unknown fields {sorted(unknown)}")
        return made

    def parts(self, kind: str, content: bytes, schema: Any) -> dict[str, Any]:
        head = f"Content-Type: {kind}\r\nMIME-Version: 1.0\r\n\r\n".encode()
        message: Any = email.message_from_bytes(head + content, policy=email.policy.HTTP)
        made: dict[str, Any] = {}
        for part in message.iter_parts():
            name = part.get_param("name", header="content-disposition")
            one = self.resolve(schema)["properties"][name]
            data = part.get_payload(decode=True)
            if one.get("contentMediaType"):
                if part.get_content_type() != "application/octet-stream" or not part.get_filename():
                    raise Wrong(f"part {name} is no file")
                made[name] = base64.b64encode(data).decode()
            elif "object" in self.kinds(one):
                made[name] = _Json(json.loads(data))
            elif "array" in self.kinds(one):
                made.setdefault(name, []).append(data.decode("utf-8"))
            else:
                made[name] = data.decode("utf-8")
        return made

    # -- from texts to values -------------------------------------------------------------------------------

    def kinds(self, schema: Any) -> set[str]:
        schema = self.resolve(schema)
        found = schema.get("type", [])
        made = {found} if isinstance(found, str) else set(found)
        for key in ("anyOf", "oneOf", "allOf"):
            for one in schema.get(key, ()):
                made |= self.kinds(one)
        return made

    def fit(self, raw: Any, schema: Any, whom: str) -> Any:
        """The value that was meant, which must fit."""
        validator = self.validator(schema)
        if isinstance(raw, _Json):
            if validator.is_valid(raw.value):
                return raw.value
            raise Wrong(f"{whom}: {raw.value!r} does not fit {schema}")
        for candidate in self.readings(raw, schema, 0):
            if validator.is_valid(candidate):
                return candidate
        raise Wrong(f"{whom}: {raw!r} does not fit {schema}")

    def validator(self, schema: Any) -> Any:
        whole = {"allOf": [schema], "components": self.components}
        return jsonschema_rs.Draft202012Validator(whole)

    def readings(self, raw: Any, schema: Any, depth: int) -> Iterator[Any]:
        """What texts may mean by a schema, the likely reading first."""
        if depth > 12:
            return
        if isinstance(raw, _Json):
            yield raw.value
            return
        schema = self.resolve(schema)
        if isinstance(schema, bool):
            yield raw
            return
        for key in ("oneOf", "anyOf", "allOf"):
            for one in schema.get(key, ()):
                yield from self.readings(raw, one, depth + 1)
        if isinstance(raw, str):
            kinds = self.kinds(schema)
            if "integer" in kinds and re.fullmatch(r"-?\d+", raw):
                yield int(raw)
            if "number" in kinds and re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", raw):
                yield float(raw)
            if "boolean" in kinds and raw in ("true", "false"):
                yield raw == "true"
            yield raw
        elif isinstance(raw, dict) and "array" in self.kinds(schema) and all(key.isdecimal() for key in raw):
            ordered = [raw[key] for key in sorted(raw, key=int)]
            if [*map(int, sorted(raw, key=int))] == list(range(len(raw))):
                yield from self.readings(ordered, schema, depth + 1)
        elif isinstance(raw, list):
            validator = self.validator(schema.get("items", {}))
            yield [self.best(item, schema.get("items", {}), validator, depth) for item in raw]
        elif isinstance(raw, dict):
            made = {}
            for key, item in raw.items():
                one = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
                made[key] = self.best(item, one, self.validator(one), depth)
            yield made

    def best(self, raw: Any, schema: Any, validator: Any, depth: int) -> Any:
        for candidate in self.readings(raw, schema, depth + 1):
            if validator.is_valid(candidate):
                return candidate
        return raw


class _Json:
    """A value that was JSON already."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _group(name: str) -> str:
    return "p_" + re.sub(r"\W", "_", name)


def _simple(raw: str, explode: bool, kinds: set[str], decode: Any) -> Any:
    if "array" in kinds:
        return [decode(one) for one in raw.split(",")]
    if "object" in kinds:
        if explode:
            return {
                decode(key): decode(value) for key, _, value in (one.partition("=") for one in raw.split(","))
            }
        items = [decode(one) for one in raw.split(",")]
        return dict(zip(items[::2], items[1::2], strict=True))
    return decode(raw)


def _deep(pairs: list[tuple[str, str]], name: str) -> tuple[Any, set[str]]:
    """``name[a][0]=x`` as nested objects."""
    made: Any = None
    used = set()
    for key, value in pairs:
        if key == name:
            if made is not None:
                raise Wrong(f"{name} is told twice")
            made = value
        elif key.startswith(f"{name}[") and key.endswith("]"):
            steps = key[len(name) + 1 : -1].split("][")
            made = {} if made is None else made
            inner = made
            for step in steps[:-1]:
                inner = inner.setdefault(step, {})
            if steps[-1] in inner:
                raise Wrong(f"{key} is told twice")
            inner[steps[-1]] = value
        else:
            continue
        used.add(key)
    return made, used


def _for_requests(value: Any, is_3_0: bool) -> Any:
    """The same schemas as a validator of JSON Schema understands them: what is read-only must not be sent."""
    if isinstance(value, list):
        return [_for_requests(item, is_3_0) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("properties"), dict):
        hidden = {name for name, one in value["properties"].items() if one.get("readOnly")}
        for name in hidden:
            value["properties"][name] = False
        if "required" in value:
            value["required"] = [name for name in value["required"] if name not in hidden]
    made = {
        key: _for_requests(item, is_3_0) for key, item in value.items() if key not in ("example", "nullable")
    }
    if is_3_0:
        for bound in ("Minimum", "Maximum"):
            if made.get(f"exclusive{bound}") is True:
                made[f"exclusive{bound}"] = made.pop(bound.lower())
        if value.get("nullable") is True:
            return {"anyOf": [{"type": "null"}, made]}
    return made
