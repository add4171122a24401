"""Routes as data: what a request may say, what it is answered with, and the OpenAPI document made of it.

One table serves three readers. Requests are checked by it, the document that describes them is written from
it, and tests hold the answers against it; so they cannot differ. Which routes there are, and what they do,
is ``http.py``'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Generic, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

from msgspec import Struct, field

from toolcrib import jsontext
from toolcrib.errors import nearest
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import Right, Schema
from toolcrib.schema import complaints, cut

H = TypeVar("H")
"""What a route is handed to."""

QUERY_BYTES_MAX: Final = 16 << 10
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:[eE][-+]?[0-9]{1,2})?")
_ROOT: Final = "#/components/schemas/"


def shape(name: str) -> JsonObject:
    """A schema that stands in the document by its name."""
    return {"$ref": _ROOT + name}


class Parameter(Struct, frozen=True, kw_only=True):
    """Something a request may say besides its body."""

    name: str
    about: str
    schema: JsonObject
    place: str = "query"
    """``query``, ``path`` or ``header``."""

    @property
    def document(self) -> JsonObject:
        return {
            "name": self.name,
            "in": self.place,
            "description": self.about,
            "required": self.place == "path",
            "schema": self.schema,
        }


class Reply(Struct, frozen=True, kw_only=True):
    """One answer that a route may give."""

    about: str
    contents: Mapping[str, JsonObject] = field(default_factory=dict)
    """Schemas by media type."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """What headers say, by their names."""

    @property
    def document(self) -> JsonObject:
        written: JsonObject = {"description": self.about}
        if self.headers:
            written["headers"] = {
                name: {"description": about, "schema": {"type": "string"}}
                for name, about in self.headers.items()
            }
        if self.contents:
            written["content"] = {media: {"schema": schema} for media, schema in self.contents.items()}
        return written


class Route(Struct, Generic[H], frozen=True, kw_only=True):
    """One thing that can be asked for."""

    method: str
    path: str
    """With ``{name}`` for a segment that varies."""
    name: str
    title: str
    handle: H
    about: str = ""
    right: Right | None = None
    """What a guest needs to ask; None: nothing."""
    parameters: tuple[Parameter, ...] = ()
    body: JsonObject | None = None
    """The schema of the JSON object that is sent; None: nothing is."""
    replies: Mapping[int, Reply] = field(default_factory=dict)
    media: str = "application/json"
    """What a good answer is."""

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")[1:])

    def placed(self, place: str) -> dict[str, Parameter]:
        return {each.name: each for each in self.parameters if each.place == place}


class Wrong(Exception):
    """A request that does not fit: the place and what is wrong, and what to do about it."""

    def __init__(
        self, status: int, detail: str, hint: str | None = None, *, again_s: int | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.hint = hint
        self.again_s = again_s
        """In how many seconds it may be tried again."""


# -- finding ------------------------------------------------------------------------------------------------


class Table(Generic[H]):
    """The routes, found by path and method."""

    def __init__(self, routes: Sequence[Route[H]]) -> None:
        self.routes = tuple(routes)
        self._by_length: dict[int, list[tuple[tuple[str, ...], dict[str, Route[H]]]]] = {}
        for route in routes:
            group = self._by_length.setdefault(len(route.segments), [])
            for segments, methods in group:
                if segments == route.segments:
                    methods[route.method] = route
                    break
            else:
                group.append((route.segments, {route.method: route}))

    def find(self, raw_path: bytes) -> tuple[dict[str, Route[H]], dict[str, str]]:
        """The routes of a path by method, and what its varying segments say; nothing where there is none.

        Segments are taken apart before they are decoded: an encoded slash is part of a name.
        """
        segments = raw_path.split(b"/")[1:]
        for pattern, methods in self._by_length.get(len(segments), ()):
            found: dict[str, str] = {}
            for expected, given in zip(pattern, segments, strict=True):
                if expected.startswith("{"):
                    try:
                        text = unquote_to_bytes(given).decode("utf-8")
                    except UnicodeDecodeError:
                        break
                    if not text:
                        break
                    found[expected[1:-1]] = text
                elif expected.encode("ascii") != given:
                    break
            else:
                return methods, found
        return {}, {}


def methods_of(routes: Mapping[str, object]) -> bytes:
    """The value of ``Allow``."""
    names = {*routes, "OPTIONS", *(("HEAD",) if "GET" in routes else ())}
    return ", ".join(sorted(names)).encode("ascii")


# -- reading ------------------------------------------------------------------------------------------------


def read_path(route: Route[H], given: Mapping[str, str]) -> None:
    """Refuse what cannot be anything's name: it is not there."""
    for name, parameter in route.placed("path").items():
        if complaints(Schema.of(parameter.schema), given[name]):
            raise Wrong(404, f"{name}: there is no {cut(repr(given[name]))}")


def read_query(route: Route[H], raw: bytes) -> dict[str, JsonValue]:
    """What a query says, by the route's parameters. Raises Wrong."""
    if len(raw) > QUERY_BYTES_MAX:
        raise Wrong(414, f"the query has more than {QUERY_BYTES_MAX} bytes", "ask for less at once")
    if not raw:
        return {}
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="strict", separator="&"
        )
    except ValueError:
        raise Wrong(
            400, "the query is not percent-encoded UTF-8 of at most 100 parameters", "encode it"
        ) from None
    known = route.placed("query")
    found: dict[str, JsonValue] = {}
    for name, text in pairs:
        parameter = known.get(name)
        if parameter is None:
            close = nearest(name[:60], list(known))
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            hint = f"did you mean {close[0]}?" if close else takes
            raise Wrong(400, f"query: there is no parameter {cut(repr(name))} here", hint)
        if name in found:
            raise Wrong(400, f"query: {name} stands there twice", "give it once")
        found[name] = _value(parameter, text, "query")
    return found


def read_headers(route: Route[H], headers: Sequence[tuple[bytes, bytes]]) -> dict[str, JsonValue]:
    """What headers say, by the route's parameters, under their lower-case names. Raises Wrong."""
    known = {name.lower().encode("ascii"): each for name, each in route.placed("header").items()}
    if not known:
        return {}
    found: dict[str, JsonValue] = {}
    for name, value in headers:
        parameter = known.get(name)
        if parameter is None:
            continue
        spoken = name.decode("ascii")
        if spoken in found:
            raise Wrong(400, f"header: {parameter.name} stands there twice", "send it once")
        found[spoken] = _value(parameter, value.decode("latin-1"), "header")
    return found


def _value(parameter: Parameter, text: str, place: str) -> JsonValue:
    """A text as the parameter's type, checked."""
    value: JsonValue = text
    kind = parameter.schema.get("type")
    if kind == "integer" and _INTEGER.fullmatch(text):
        value = int(text)
    elif kind == "number" and _NUMBER.fullmatch(text):
        value = float(text)
    elif kind == "boolean" and text in ("true", "false"):
        value = text == "true"
    found = complaints(Schema.of(parameter.schema), value)
    if found:
        raise Wrong(400, f"{place}: {parameter.name}: {found[0].message}", parameter.about)
    return value


def read_object(route: Route[H], content: bytes) -> JsonObject:
    """The body's object, by the route's schema. Raises Wrong."""
    assert route.body is not None
    if not content.strip():
        raise Wrong(400, "the body is empty", "send a JSON object, at least {}")
    parsed = jsontext.read(content, allow_nul=True)
    if parsed.defect is not None:
        raise Wrong(400, f"the body is not JSON: {parsed.defect}", "send one JSON object, in UTF-8")
    if parsed.duplicates:
        twice = parsed.duplicates[0]
        place = jsontext.place_text((*twice.pointer, twice.key))
        raise Wrong(400, f"line {twice.line}: {cut(repr(place))} stands there twice", "leave one of them out")
    members = route.body["properties"]
    found = complaints(Schema.of(route.body), parsed.value)
    if found:
        takes = f"it takes {', '.join(members)}; " if members else ""
        raise Wrong(422, f"body: {found[0]}", f"{takes}the schema of {route.name} stands in /openapi.json")
    return {
        # 7.0 is an integer to JSON Schema, and not to Python.
        name: int(value) if isinstance(value, float) and members[name].get("type") == "integer" else value
        for name, value in parsed.value.items()
    }


# -- writing ------------------------------------------------------------------------------------------------


def openapi(
    routes: Sequence[Route[H]],
    *,
    title: str,
    about: str,
    version: str,
    shapes: Mapping[str, JsonObject],
    problems: Mapping[int, Reply],
) -> JsonObject:
    """The OpenAPI 3.1 document of routes. ``problems`` are answers that any of them may give."""
    paths: dict[str, JsonObject] = {}
    for route in routes:
        operation: JsonObject = {
            "operationId": route.name,
            "summary": route.title,
            "tags": [route.segments[1] if route.segments[0] == "v1" else "server"],
        }
        needs = f"Needs the right `{route.right.value}`." if route.right is not None else ""
        described = " ".join(part for part in (route.about, needs) if part)
        if described:
            operation["description"] = described
        if route.parameters:
            operation["parameters"] = [parameter.document for parameter in route.parameters]
        if route.body is not None:
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": route.body}},
            }
        replies = {status: reply.document for status, reply in route.replies.items()}
        for status, reply in problems.items():
            if route.body is None and status in _OF_BODIES:
                continue
            mine, common = replies.setdefault(status, reply.document), reply.document
            for part in ("content", "headers"):
                if part in common:
                    mine[part] = {**common[part], **mine.get(part, {})}
        operation["responses"] = {str(status): replies[status] for status in sorted(replies)}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "description": about, "version": version},
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(shapes),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "From `toolcrib token create`; on loopback none is needed.",
                }
            },
        },
    }


_OF_BODIES: Final = frozenset({408, 415, 422})
"""Only requests with a body are answered so."""
