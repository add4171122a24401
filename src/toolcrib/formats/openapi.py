"""The OpenAPI format: documents of version 3.0 and 3.1, in JSON or YAML; one tool for each operation.

Marked by a root ``openapi`` that says 3.x, beside ``paths``. Each operation becomes a ``CallHttp`` that says
where every argument goes in the request; ``calls/operations.py`` writes the request, and a runtime sends it.
What cannot be expressed is a named loss: a problem with the operation, the place and the reason.

Nothing is fetched, and no secret is known here: a document says *how* a request proves who sends it, and only
whoever named the document says *which* secret that is. Schemas are ``_openapi_schema.py``'s business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

from msgspec import Struct

from toolcrib import schema as json_schema
from toolcrib.formats import _schema_lint, _yaml
from toolcrib.formats._node import SHOWN_CHARS_MAX, TOOLS_MAX, Reader, key_of, kind_of, shown
from toolcrib.formats._openapi_schema import (
    Direction,
    Lost,
    Resolver,
    Schemas,
    distinct,
    refused_patterns,
)
from toolcrib.jsontext import Duplicate, JsonObject, JsonValue, Pointer
from toolcrib.model import (
    CallHttp,
    Compiled,
    Credential,
    Document,
    Effect,
    Linked,
    Needs,
    Notes,
    OpenApiOptions,
    Origin,
    Place,
    Placed,
    Problem,
    Rules,
    Schema,
    Severity,
    Tool,
    Unit,
)

NAME: Final = "openapi"
BYTES_MAX: Final = 16 << 20
"""The largest documents in public use have some ten million bytes; a declaration of another format has a
sixteenth of this."""
VALUES_MAX: Final = 1_000_000
DESCRIPTION_CHARS_MAX: Final = 1_000
NAME_CHARS_MAX: Final = 64
DUPLICATES_MAX: Final = 100
OUTPUT_PARTS_MAX: Final = 400
OUTPUT_BYTES_MAX: Final = 16 << 10
"""Schemas of answers are only told where they are short: nothing needs them, and in an API whose objects
refer to each other each of them holds nearly all of the document."""
_REST_S: Final = 60.0
"""How long a URL that gave no document is left alone: it is not asked at every start while it is down."""
_LINES_DEPTH_MAX: Final = 6
_PATH_CHARS_MAX: Final = 2_000

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch")
_OTHER_METHODS: Final = ("trace", "query")
_EFFECTS: Final = {
    "get": Effect.READ, "head": Effect.READ, "options": Effect.READ, "post": Effect.CREATE,
}  # fmt: skip
_IDEMPOTENT: Final = frozenset({"get", "head", "options", "put", "delete"})
_STYLES: Final = {
    Place.PATH: ("simple", "label", "matrix"),
    Place.QUERY: ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    Place.HEADER: ("simple",),
    Place.COOKIE: ("form",),
}
_IGNORED_HEADERS: Final = frozenset({"accept", "content-type", "authorization"})
_CLIENT_HEADERS: Final = frozenset(
    {
        "host", "content-length", "connection", "transfer-encoding", "te", "trailer", "upgrade", "expect",
        "keep-alive", "proxy-authorization", "proxy-connection", "cookie", "content-encoding",
    }
)  # fmt: skip
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}")
_MARK: Final = re.compile(r"\{([^{}]*)\}")
_URL: Final = re.compile(r"[A-Za-z0-9._~:/\[\]@!$&'()*+,;=%-]+")
_GENERIC_STEMS: Final = frozenset(
    {"openapi", "swagger", "api", "spec", "index", "schema", "spec3", "api-docs", "document"}
)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_BINARY: Final = "application/octet-stream"
_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_FLAT_KEYS: Final = frozenset(
    {
        "$ref", "type", "properties", "required", "title", "description", "summary", "additionalProperties",
        "example", "examples", "deprecated", "externalDocs", "xml", "discriminator", "allOf", "default",
        "readOnly", "writeOnly",
    }
)  # fmt: skip


def recognises(document: Document) -> bool:
    parsed = document.parsed
    if parsed is None or not isinstance(parsed.value, dict):
        return False
    root = parsed.value
    # A repeated member is left out of the value, and marks the format all the same.
    repeated = {found.key for found in parsed.duplicates if found.pointer == ()}
    version = root.get("openapi")
    is_told = (isinstance(version, str) and version.startswith("3.")) or "openapi" in repeated
    return is_told and ("paths" in root or "paths" in repeated)


def compile_document(document: Document, rules: Rules) -> Compiled:
    reader = Reader(document)
    read = _read(document, reader)
    if read is None:
        # What could not be fetched or read may be there the next time.
        waited_s = _REST_S if document.path.startswith(("http://", "https://")) else 0.0
        again_s = waited_s if document.unreadable is not None else None
        return Compiled(problems=tuple(reader.problems), again_s=again_s)
    root, lines, duplicates = read
    api = _Api(document, root, lines, duplicates, frozenset())
    api.read()
    patterns = api.requests.patterns | api.responses.patterns
    if patterns:
        count = sum(
            json_schema.patterns_in(found)
            for tool in api.tools
            for found in (tool.input_schema, tool.output_schema)
            if found is not None
        )
        refused = refused_patterns(patterns, count)
        if refused:  # once more without them: one pattern must not cost the tools that hold it
            api = _Api(document, root, lines, duplicates, refused)
            api.read()
    return Compiled(tools=tuple(api.tools), problems=(*reader.problems, *api.reader.problems))


def link(units: Sequence[Unit], rules: Rules) -> Linked:
    """Documents know nothing of each other: their tools stand side by side, each under its own scope.

    Attack: a document whose file or title is called like another API, and whose operations so fall under
    what was granted to that API's tools: all of them get a scope that no other document has.
    """
    tools: list[Tool] = []
    problems: list[Problem] = []
    taken: set[str] = {unit.compiled.tools[0].scope for unit in units if unit.compiled.tools}
    first: dict[str, str] = {}
    for unit in units:
        own = unit.compiled.tools
        if own and own[0].scope in first:
            name = own[0].scope
            scope = next(f"{name}~{n}" for n in range(2, len(units) + 3) if f"{name}~{n}" not in taken)
            taken.add(scope)
            own = tuple(tool.replace(key=key_of(NAME, scope, tool.name), scope=scope) for tool in own)
            problems.append(
                Problem(
                    code="openapi.source.renamed",
                    severity=Severity.WARNING,
                    message=f'the OpenAPI document {first[name]} is called "{name}": '
                    f'the tools of this one have keys with "{scope}"',
                    path=unit.path,
                    name=scope,
                    hint="name its source in the configuration",
                )
            )
        elif own:
            first[own[0].scope] = unit.path
        tools += own
    return Linked(tools=tuple(tools), problems=tuple(problems))


_Read = tuple[JsonObject, Mapping[Pointer, int], Sequence[Duplicate]]


def _read(document: Document, reader: Reader) -> _Read | None:
    """The document's root, with the lines of its places; None where it is no OpenAPI document."""
    content = document.content
    if content is None or document.unreadable is not None:
        reader.add(
            "openapi.document.unreadable",
            f"the document cannot be read: {document.unreadable or 'no content'}",
            hint="see that this machine can fetch it, or name a file with it instead"
            if "://" in document.path
            else "make it a readable file, or leave it out of the sources",
        )
        return None
    if len(content) > BYTES_MAX:
        reader.add(
            "openapi.document.unreadable",
            f"the document has {len(content):,} bytes, more than the {BYTES_MAX:,} it may have",
            hint="split it, or take the operations that are needed into a document of their own",
        )
        return None
    value: JsonValue
    if document.parsed is not None:
        value, defect, duplicates = (
            document.parsed.value,
            document.parsed.defect,
            document.parsed.duplicates,
        )
        lines: Mapping[Pointer, int] = {}
    else:
        found = _yaml.read(content, nodes_max=VALUES_MAX, lines_depth_max=_LINES_DEPTH_MAX)
        value, defect, duplicates, lines = found.value, found.defect, found.duplicates, found.lines
    if defect is not None:
        reader.add(
            "openapi.document.syntax",
            str(defect),
            line=defect.line,
            hint="mend the text there; if it is no OpenAPI document, leave it out of the sources",
        )
        return None
    if not isinstance(value, dict):
        reader.add(
            "openapi.document.marker", f"not an OpenAPI document (a root {kind_of(value)})", pointer=()
        )
        return None
    version = value.get("openapi")
    if isinstance(version, float):  # YAML's `openapi: 3.1`
        version = str(version)
    if not isinstance(version, str) or not isinstance(value.get("paths", {}), dict):
        old = f" (Swagger {value['swagger']})" if isinstance(value.get("swagger"), (str, float)) else ""
        reader.add(
            "openapi.document.marker",
            f"not an OpenAPI 3 document{old}: `openapi: 3.x` and `paths` are its marks",
            pointer=(),
            hint="convert it to OpenAPI 3 first" if old else "leave the file out of the sources",
        )
        return None
    if not version.startswith(("3.0", "3.1")):
        is_newer = version.startswith("3.")
        reader.add(
            "openapi.document.version",
            f"openapi: version {shown(version)} is not one we know"
            + ("; it is read as 3.1" if is_newer else ""),
            severity=Severity.WARNING if is_newer else Severity.ERROR,
            pointer=("openapi",),
            hint="versions 3.0 and 3.1 are read in full",
        )
        if not is_newer:
            return None
    return {**value, "openapi": version}, lines, duplicates


class _Argument(Struct, frozen=True, kw_only=True):
    """One argument that an operation takes, before all of them have got their names."""

    name: str
    place: Place
    schema: JsonValue
    required: bool
    style: str = "form"
    explode: bool = True
    media_type: str | None = None
    reserved: bool = False


class _Body(Struct, frozen=True, kw_only=True):
    arguments: tuple[_Argument, ...] = ()
    media_type: str = "application/json"
    required: bool = False


class _Operation:
    """Where an operation stands, for messages and addresses."""

    __slots__ = ("item", "item_pointer", "method", "name", "path", "pointer", "value")

    def __init__(
        self,
        path: str,
        method: str,
        item: JsonObject,
        item_pointer: Pointer,
        value: JsonObject,
        pointer: Pointer,
    ) -> None:
        self.path = path
        self.method = method
        self.item = item
        self.item_pointer = item_pointer
        self.value = value
        self.pointer = pointer
        self.name = ""

    def __str__(self) -> str:
        path = self.path if len(self.path) <= SHOWN_CHARS_MAX else self.path[: SHOWN_CHARS_MAX - 1] + "…"
        return f"{self.method.upper()} {path}"


class _Api:
    """One reading of one document."""

    def __init__(
        self,
        document: Document,
        root: JsonObject,
        lines: Mapping[Pointer, int],
        duplicates: Sequence[Duplicate],
        refused: frozenset[str],
    ) -> None:
        self.document = document
        self.options = document.openapi or OpenApiOptions()
        self.root = root
        self.reader = Reader(document, lines)
        self.duplicates = duplicates
        self.resolver = Resolver(root)
        is_3_0 = root["openapi"].startswith("3.0")
        self._said: set[tuple[str, Pointer]] = set()
        self.requests = Schemas(
            self.resolver, Direction.REQUEST, self.warn, is_3_0=is_3_0, refused_patterns=refused
        )
        self.responses = Schemas(
            self.resolver, Direction.RESPONSE, _say_nothing, is_3_0=is_3_0, refused_patterns=refused
        )
        self.tools: list[Tool] = []
        self.taken: set[str] = set()
        self.scope = _scope(document, root)
        self.secrets = _secrets(self.options.secret)
        self.bases: dict[Pointer, str | Lost] = {}
        self.secrets_used: set[str] = set()
        self.without_secret: list[str] = []
        self.in_plain: dict[str, None] = {}
        self.without_output = 0

    # -- saying what is wrong -------------------------------------------------------------------------------

    def warn(self, code: str, message: str, pointer: Pointer, hint: str | None = None) -> None:
        if (code, pointer) not in self._said:
            self._said.add((code, pointer))
            self.reader.add(code, message, severity=Severity.WARNING, pointer=pointer, hint=hint)

    def lose(self, operation: _Operation, lost: Lost) -> None:
        self.reader.add(
            lost.code,
            f"{operation}: {lost.message}",
            pointer=lost.pointer,
            name=operation.name or None,
            hint=lost.hint,
        )

    # -- the document ---------------------------------------------------------------------------------------

    def read(self) -> None:
        for repeated in self.duplicates[:DUPLICATES_MAX]:
            self.reader.add(
                "openapi.document.duplicate-key",
                f'duplicate key "{repeated.key[:SHOWN_CHARS_MAX]}"; neither of its values counts',
                pointer=repeated.pointer,
                line=repeated.line,
                hint="keep one of them",
            )
        all_of_them = list(self.operations())
        wanted = [operation for operation in all_of_them if self.is_wanted(operation)]
        if all_of_them and not wanted:
            self.reader.add(
                "openapi.filter.nothing",
                f"none of the {len(all_of_them):,} operations has the tags and paths that are asked for",
                severity=Severity.WARNING,
                hint="check the spelling of `tags` and `paths` of the source",
            )
        if len(wanted) > TOOLS_MAX:
            self.reader.add(
                "openapi.operation.too-many",
                f"more than {TOOLS_MAX:,} operations (got {len(wanted):,})",
                pointer=("paths",),
                hint="choose among them by `tags` or `paths` of the source",
            )
            return
        for operation in wanted:
            operation.name = self.name(operation)
            try:
                self.tools.append(self.tool(operation))
            except Lost as lost:
                self.lose(operation, lost)
        self.requests.report_undefined()
        self.sum_up()

    def operations(self) -> Iterator[_Operation]:
        found = self.object(self.root.get("paths", {}), ("paths",), "paths")
        paths, around = found if found is not None else ({}, ())
        for path, value in paths.items():
            if path.startswith("x-"):
                continue
            item = self.object(value, (*around, path), shown(path))
            if item is not None:
                yield from self.methods(path, *item)

    def methods(self, path: str, item: JsonObject, place: Pointer) -> Iterator[_Operation]:
        """List the operations of one path."""
        short = path[:SHOWN_CHARS_MAX]
        for method, value in item.items():
            if method in _METHODS:
                found = self.object(value, (*place, method), f"{method.upper()} {shown(path)}")
                if found is not None:
                    yield _Operation(path, method, item, place, *found)
            elif method in _OTHER_METHODS:
                message = f"{method.upper()} {short}: the method is not supported"
                self.warn("openapi.operation.method", message, (*place, method))
            elif method == "additionalOperations" or method.lower() in _METHODS:
                self.warn(
                    "openapi.operation.method",
                    f"{short}: {shown(method)} is not read",
                    (*place, method),
                    f"write it as {', '.join(_METHODS)}",
                )

    def object(self, value: JsonValue, pointer: Pointer, what: str) -> tuple[JsonObject, Pointer] | None:
        """Follow a part of the document: its value with the members beside its reference, and its place.

        None if it cannot be read, which is reported.
        """
        try:
            found, place = self.resolver.follow(value, pointer)
        except Lost as lost:
            self.reader.add(lost.code, f"{what}: {lost.message}", pointer=lost.pointer, hint=lost.hint)
            return None
        if not isinstance(found, dict):
            message = f"{what}: must be an object, got {kind_of(found)}"
            self.reader.add("openapi.operation.shape", message, pointer=pointer)
            return None
        if isinstance(value, dict) and place != pointer:
            found = {**found, **{key: one for key, one in value.items() if key != "$ref"}}
        return found, place

    def part(self, holder: JsonObject, key: str, pointer: Pointer) -> tuple[JsonValue, Pointer]:
        """Follow a member: its value and its place, because any member may be a reference. Raises Lost."""
        return self.resolver.follow(holder.get(key), (*pointer, key))

    def is_wanted(self, operation: _Operation) -> bool:
        if self.options.tags and not set(_texts(operation.value.get("tags"))) & set(self.options.tags):
            return False
        refused = [pattern[1:] for pattern in self.options.paths if pattern.startswith("!")]
        asked = [pattern for pattern in self.options.paths if not pattern.startswith("!")]
        path = operation.path[:_PATH_CHARS_MAX]
        if any(fnmatchcase(path, pattern) for pattern in refused):
            return False
        return not asked or any(fnmatchcase(path, pattern) for pattern in asked)

    def sum_up(self) -> None:
        """What concerns many operations is said once."""
        if self.without_secret:
            count = len(self.without_secret)
            named = ", ".join(self.without_secret[:5]) + (", …" if count > 5 else "")
            self.reader.add(
                "openapi.security.no-secret",
                f"{count:,} operations need authentication and no secret is configured for it ({named})",
                severity=Severity.WARNING,
                pointer=("components", "securitySchemes"),
                hint='name the secret on the source: `secret = "NAME"`; their calls are refused until then',
            )
        unused = sorted({name for name in self.secrets.values() if name} - self.secrets_used)
        if unused and self.tools:
            self.reader.add(
                "openapi.security.unused",
                f"the secret {', '.join(unused)} is used by no operation",
                severity=Severity.WARNING,
                pointer=("components", "securitySchemes"),
                hint="the document has no security scheme that it could be for; nothing is sent with it",
            )
        for server in self.in_plain:
            self.reader.add(
                "openapi.server.plain",
                f"{shown(server)} is not encrypted: whoever is on the way can read the secret",
                severity=Severity.WARNING,
                pointer=("servers",),
                hint="use a server with https",
            )
        if self.without_output:
            self.reader.add(
                "openapi.output.left-out",
                f"{self.without_output:,} operations go without the schema of their answer: it is too large",
                severity=Severity.INFO,
                pointer=(),
            )

    # -- one operation --------------------------------------------------------------------------------------

    def name(self, operation: _Operation) -> str:
        told = operation.value.get("operationId")
        wanted = _legal(told) if isinstance(told, str) else ""
        if not wanted:
            by = _MARK.sub(lambda mark: f"by_{mark[1]}", operation.path).strip("/")
            wanted = _legal(f"{operation.method}_{by}")
        name = wanted
        number = 2
        while name in self.taken:
            name = f"{wanted[: NAME_CHARS_MAX - 1 - len(str(number))]}_{number}"
            number += 1
        self.taken.add(name)
        if name != wanted:
            self.warn(
                "openapi.operation.name-clash",
                f'{operation}: another operation is called "{wanted}"; this one is "{name}"',
                (*operation.pointer, "operationId") if isinstance(told, str) else operation.pointer,
                "give each operation an operationId of its own",
            )
        return name

    def tool(self, operation: _Operation) -> Tool:
        url = self.base(operation) + self.path(operation)
        credentials = self.credentials(operation)
        arguments = self.parameters(operation, credentials)
        body = self.body(operation)
        properties: JsonObject = {}
        required: list[JsonValue] = []
        placed: list[Placed] = []
        taken: set[str] = set()
        for argument in (*arguments, *body.arguments):
            name = _argument_name(argument, taken)
            properties[name] = argument.schema
            if argument.required:
                required.append(name)
            placed.append(
                Placed(
                    argument=name,
                    place=argument.place,
                    name=argument.name,
                    style=argument.style,
                    explode=argument.explode,
                    media_type=argument.media_type,
                    reserved=argument.reserved,
                )
            )
        schema: JsonObject = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
        schema, was_cut = self.requests.assembled(schema, operation.pointer)
        if was_cut:
            self.warn(
                "openapi.schema.cut",
                f"{operation}: the schema of its arguments is too large to be told in full; what lies deep "
                "in it is left to the server",
                operation.pointer,
            )
        is_plain = url.startswith("http://") and (urlsplit(url).hostname or "") not in _LOOPBACK
        if is_plain and any(one.secret for one in credentials):
            self.in_plain.setdefault(url[: url.find("/", len("http://"))])
        accept, output = self.output(operation)
        is_deprecated = operation.value.get("deprecated") is True
        return Tool(
            key=key_of(NAME, self.scope, operation.name),
            name=operation.name,
            scope=self.scope,
            description=_description(operation, is_deprecated=is_deprecated),
            input_schema=Schema.of(schema),
            output_schema=Schema.of(output) if output is not None else None,
            invocation=CallHttp(
                method=operation.method.upper(),
                url=url,
                headers=(("Accept", accept),),
                placed=tuple(placed),
                media_type=body.media_type,
                credentials=credentials,
                settings=b'{"body":"required"}' if body.required else b"{}",
            ),
            needs=Needs(
                stated=True,
                capabilities=("net.http",),
                # Whoever named the secret on the source has handed it over: no second grant is needed.
                env=tuple(dict.fromkeys(one.secret for one in credentials if one.secret)),
            ),
            effect=_EFFECTS.get(operation.method, Effect.CHANGE),
            effect_from=f"method {operation.method.upper()}",
            notes=Notes(
                tags=tuple(_texts(operation.value.get("tags")))[:20],
                deprecated=is_deprecated,
                metadata={"idempotent": operation.method in _IDEMPOTENT},
            ),
            origin=Origin(
                format=NAME,
                path=self.document.path,
                pointer=operation.pointer,
                line=self.reader.line(operation.pointer),
            ),
        )

    # -- where the request goes -----------------------------------------------------------------------------

    def base(self, operation: _Operation) -> str:
        """What the path is put to: of the operation's own servers, the path's or the document's."""
        servers: list[JsonValue] = [{"url": "/"}]
        where: Pointer = ("servers",)
        for holder, place in (
            (self.root, ()),
            (operation.item, operation.item_pointer),
            (operation.value, operation.pointer),
        ):
            told, there = self.part(holder, "servers", place)
            if told is not None and not isinstance(told, list):
                # Attack: requests that go to another server than the one that the author wrote.
                message = f"servers must be an array, got {kind_of(told)}"
                raise Lost("openapi.server.unusable", message, there)
            if told:
                servers, where = told, there
        if where not in self.bases:
            try:
                self.bases[where] = self.server(servers, where)
            except Lost as lost:
                self.bases[where] = lost
        found = self.bases[where]
        if isinstance(found, Lost):
            raise found
        return found

    def server(self, servers: list[JsonValue], pointer: Pointer) -> str:
        """The first server that can be used."""
        why = "there is none"
        for server in servers:
            url = server.get("url") if isinstance(server, dict) else None
            if not isinstance(url, str):
                why = "its url must be text"
                continue
            variables = server.get("variables")
            for name, variable in variables.items() if isinstance(variables, dict) else ():
                default = variable.get("default") if isinstance(variable, dict) else None
                if isinstance(default, (str, int)):
                    url = url.replace(f"{{{name}}}", str(default))
            complaint = _unusable(url, self.options.base_url)
            if complaint is None:
                return urljoin(self.options.base_url, url).rstrip("/")
            why = f"{shown(url)} {complaint}"
        raise Lost(
            "openapi.server.unusable",
            f"no server to send requests to: {why}",
            pointer,
            "write the API's full address in `servers`",
        )

    def path(self, operation: _Operation) -> str:
        """The path with its marks, everything else of it percent-encoded."""
        path = operation.path
        place: Pointer = operation.item_pointer
        if not path.startswith("/") or len(path) > _PATH_CHARS_MAX:
            message = f"a path must begin with / and have at most {_PATH_CHARS_MAX:,} characters"
            raise Lost("openapi.path.shape", message, place)
        made = []
        at = 0
        for mark in _MARK.finditer(path):
            made += [_literal(path[at : mark.start()], place), mark[0]]
            at = mark.end()
        made.append(_literal(path[at:], place))
        text = "".join(made)
        if any(segment in (".", "..") for segment in text.split("/")):
            raise Lost("openapi.path.shape", "a path must not have . or .. as a part", place)
        return text

    # -- parameters -----------------------------------------------------------------------------------------

    def parameters(self, operation: _Operation, credentials: Sequence[Credential]) -> list[_Argument]:
        found: dict[tuple[str, str], tuple[JsonObject, Pointer]] = {}
        for holder, pointer in (
            (operation.item, operation.item_pointer),
            (operation.value, operation.pointer),
        ):
            listed, around = self.part(holder, "parameters", pointer)
            if "parameters" not in holder:
                continue
            if not isinstance(listed, list):
                message = f"parameters must be an array, got {kind_of(listed)}"
                raise Lost("openapi.parameter.shape", message, around)
            for number, value in enumerate(listed):
                value, place = self.resolver.follow(value, (*around, number))
                name = value.get("name") if isinstance(value, dict) else None
                where = value.get("in") if isinstance(value, dict) else None
                if not isinstance(value, dict) or not isinstance(name, str) or not isinstance(where, str):
                    raise Lost("openapi.parameter.shape", "a parameter needs `name` and `in`", place)
                if where == "header" and name.lower() in _IGNORED_HEADERS:
                    continue  # so the specification: they are said elsewhere
                found[where, name.lower() if where == "header" else name] = (value, place)
        marks = dict.fromkeys(_MARK.findall(operation.path))
        arguments: list[_Argument] = []
        sent = {(one.place, one.name.lower()) for one in credentials if one.secret}
        for value, place in found.values():
            if (value["in"], value["name"].lower()) in sent:
                continue  # the secret goes there
            argument = self.parameter(operation, value, place)
            if argument is None:
                continue
            if argument.place is Place.PATH and argument.name not in marks:
                message = f"{operation}: the path has no {{{argument.name}}}; the parameter is left out"
                self.warn("openapi.path.unused", message, place)
                continue
            arguments.append(argument)
        told = {argument.name for argument in arguments if argument.place is Place.PATH}
        for name in marks:
            if name not in told:
                message = f"{operation}: {{{name}}} is not declared; it is taken as text"
                self.warn("openapi.path.undeclared", message, operation.pointer)
                arguments.append(
                    _Argument(
                        name=name,
                        place=Place.PATH,
                        schema={"type": "string", "minLength": 1},
                        required=True,
                        style="simple",
                        explode=False,
                    )
                )
        return arguments

    def parameter(self, operation: _Operation, value: JsonObject, pointer: Pointer) -> _Argument | None:
        """One parameter; None where it is optional and cannot be sent. Raises Lost where it is required."""
        name, where = value["name"], value["in"]
        required = value.get("required") is True or where == "path"
        try:
            if where not in ("path", "query", "header", "cookie"):
                raise Lost(
                    "openapi.parameter.unsupported", f"in: {shown(where)} is not a known place", pointer
                )
            place = Place(where)
            if place in (Place.HEADER, Place.COOKIE) and not _TOKEN.fullmatch(name):
                raise Lost(
                    "openapi.parameter.unsupported", f"{shown(name)} cannot be a {where}'s name", pointer
                )
            if place is Place.HEADER and name.lower() in _CLIENT_HEADERS:
                # Attack: an argument that sets the length or the host of a request makes it another one.
                message = f"the header {shown(name)} belongs to the client"
                raise Lost("openapi.parameter.unsupported", message, pointer)
            return self.placed(value, pointer, place, required=required)
        except Lost as lost:
            if required or lost.code != "openapi.parameter.unsupported":
                raise
            self.warn(lost.code, f"{operation}: {lost.message}; it is left out", lost.pointer)
            return None

    def placed(self, value: JsonObject, pointer: Pointer, place: Place, *, required: bool) -> _Argument:
        content, content_pointer = self.part(value, "content", pointer)
        media_type = None
        style, explode = "form" if place in (Place.QUERY, Place.COOKIE) else "simple", False
        raw: JsonValue
        if isinstance(content, dict) and content and "schema" not in value:
            written = next(iter(content))
            media, raw_pointer = self.part(content, written, content_pointer)
            media_type = _plain_media_type(written)
            if media_type is None or not (_is_json(media_type) or media_type.startswith("text/")):
                message = f"{shown(value['name'])} as {shown(written)} cannot be written"
                raise Lost("openapi.parameter.unsupported", message, content_pointer)
            raw = media.get("schema", {}) if isinstance(media, dict) else {}
            raw_pointer = (*raw_pointer, "schema")
        else:
            if "schema" not in value:
                self.look_for_schema(value, pointer)
            raw = value.get("schema", {"type": "string"})
            raw_pointer = (*pointer, "schema")
            told = value.get("style", style)
            if told not in _STYLES[place]:
                message = f"{shown(value['name'])}: style {shown(told)} is not one for a {place} parameter"
                raise Lost("openapi.parameter.unsupported", message, (*pointer, "style"))
            style = told
            explode = value["explode"] if isinstance(value.get("explode"), bool) else style == "form"
        schema = self.requests.translated(raw, raw_pointer)
        types = self.types(raw, raw_pointer)
        if media_type is None and isinstance(schema, dict):
            # What is empty cannot be told from what is absent there.
            must = required or place in (Place.PATH, Place.HEADER)
            if types == {"array"} and must:
                schema = {**schema, "minItems": max(1, _count_of(schema.get("minItems")))}
            elif types == {"object"} and must:
                schema = {**schema, "minProperties": max(1, _count_of(schema.get("minProperties")))}
            elif types == {"string"} and place is Place.PATH and "enum" not in schema:
                schema = {**schema, "minLength": max(1, _count_of(schema.get("minLength")))}
        return _Argument(
            name=value["name"],
            place=place,
            schema=_described(schema, value),
            required=required,
            style=style,
            explode=explode,
            media_type=media_type,
            reserved=value.get("allowReserved") is True,
        )

    def look_for_schema(self, value: JsonObject, pointer: Pointer) -> None:
        """Warn of a parameter whose schema is where an older version, or another format, has it."""
        keys = ("type", *(key for key in value if _schema_lint.is_schema_key(key, value, "schema")))
        for key in keys:
            if key in value:
                message = f'{shown(value["name"])}: "{key}" is not read here; the parameter is taken as text'
                hint = 'OpenAPI 3 expects `"schema": {"type": …}` in a parameter'
                self.warn("openapi.parameter.schema", message, (*pointer, key), hint)

    def types(self, value: JsonValue, pointer: Pointer) -> set[str] | None:
        """The types that a schema names itself; None where it leaves them open."""
        value, _ = self.resolver.follow(value, pointer)
        found = value.get("type") if isinstance(value, dict) else None
        if isinstance(found, str):
            return {found}
        return {one for one in found if isinstance(one, str)} if isinstance(found, list) else None

    # -- the body -------------------------------------------------------------------------------------------

    def body(self, operation: _Operation) -> _Body:
        if "requestBody" not in operation.value:
            return _Body()
        value, pointer = self.resolver.follow(
            operation.value["requestBody"], (*operation.pointer, "requestBody")
        )
        content, around = self.part(value, "content", pointer) if isinstance(value, dict) else (None, pointer)
        if not isinstance(value, dict) or not isinstance(content, dict) or not content:
            raise Lost("openapi.body.shape", "requestBody needs `content` with a media type", pointer)
        required = value.get("required") is True
        if operation.method in ("get", "head"):
            message = f"{operation}: the body of such a request means nothing"
            if required:
                raise Lost("openapi.body.unsupported", message.partition(": ")[2], pointer)
            self.warn("openapi.body.unsupported", f"{message}; it is left out", pointer)
            return _Body()
        chosen = _chosen(content)
        if chosen is None:
            message = f"no media type that can be written (got {', '.join(map(shown, list(content)[:5]))})"
            if required:
                raise Lost("openapi.body.media-type", message, around)
            self.warn("openapi.body.media-type", f"{operation}: {message}; it goes without", around)
            return _Body()
        written, media_type = chosen
        media, place = self.part(content, written, around)
        if not isinstance(media, dict):
            raise Lost("openapi.body.shape", f"must be an object, got {kind_of(media)}", place)
        return self.content(media, place, media_type, value, required=required)

    def content(
        self, media: JsonObject, pointer: Pointer, media_type: str, body: JsonObject, *, required: bool
    ) -> _Body:
        raw = media.get("schema", {})
        place: Pointer = (*pointer, "schema")
        is_form = media_type in (_FORM, _MULTIPART)
        if _is_json(media_type) or is_form:
            members = self.members(raw, place, ())
            hidden = self.requests.is_hidden
            sent = {name: found for name, found in (members or {}).items() if not hidden(found[0], found[1])}
            needed = {name for name, found in sent.items() if found[2]}
            if sent and (required or not needed):
                encoding, there = self.part(media, "encoding", pointer)
                told = encoding if isinstance(encoding, dict) and is_form else {}
                return _Body(
                    arguments=tuple(
                        self.member(name, found, media_type, self.part(told, name, there)[0])
                        for name, found in sent.items()
                    ),
                    media_type=media_type,
                    required=required,
                )
        schema = self.requests.translated(raw, place)
        if is_form and self.types(raw, place) not in ({"object"}, None):
            raise Lost("openapi.body.shape", "the body of a form must be an object", place)
        if not _is_json(media_type) and not is_form:
            schema = _as_text(schema, is_binary=not media_type.startswith("text/"))
        return _Body(
            arguments=(
                _Argument(name="body", place=Place.BODY, schema=_described(schema, body), required=required),
            ),
            media_type=media_type,
            required=required,
        )

    def members(
        self, value: JsonValue, pointer: Pointer, around: tuple[Pointer, ...]
    ) -> dict[str, tuple[JsonValue, Pointer, bool]] | None:
        """The members of a plain object, with whether each is required; None where it is anything else."""
        if (
            isinstance(value, dict)
            and "$ref" in value
            and value.keys() - {"$ref", "description", "summary"}
            and not self.requests.is_3_0
        ):
            return None
        value, pointer = self.resolver.follow(value, pointer)
        if not isinstance(value, dict) or pointer in around or len(around) > 20:
            return None
        if any(key not in _FLAT_KEYS and not key.startswith("x-") and value[key] for key in value):
            return None
        parts = value.get("allOf", [])
        properties = value.get("properties", {})
        required = value.get("required", [])
        if (
            value.get("type", "object") != "object"
            or not isinstance(properties, dict)
            or not isinstance(parts, list)
            or not isinstance(required, list)
            or value.get("additionalProperties", False) is not False
            or ("additionalProperties" in value and parts)
        ):
            return None
        found: dict[str, tuple[JsonValue, Pointer, bool]] = {}
        for number, part in enumerate(parts):
            inner = self.members(part, (*pointer, "allOf", number), (*around, pointer))
            if inner is None or inner.keys() & found.keys():
                return None
            found |= inner
        if properties.keys() & found.keys():
            return None
        for name, one in properties.items():
            if not isinstance(one, (dict, bool)):
                return None
            found[name] = (one, (*pointer, "properties", name), False)
        for name in required:
            if not isinstance(name, str) or name not in found:
                return None
            found[name] = (*found[name][:2], True)
        return found

    def member(
        self, name: str, found: tuple[JsonValue, Pointer, bool], media_type: str, told: JsonValue
    ) -> _Argument:
        raw, pointer, required = found
        schema = self.requests.translated(raw, pointer)
        style, explode, reserved, of_member = "field", True, False, None
        encoding = told if isinstance(told, dict) else {}
        if media_type == _MULTIPART and encoding.get("headers"):
            self.warn(
                "openapi.body.unsupported", f"{shown(name)}: the headers of its part are left out", pointer
            )
        if media_type == _FORM and encoding.keys() & {"style", "explode", "allowReserved"}:
            style = encoding.get("style", "form")
            if style not in _STYLES[Place.QUERY]:
                message = f"{shown(name)}: style {shown(style)} is not one for a form"
                raise Lost("openapi.body.unsupported", message, pointer)
            explode = encoding["explode"] if isinstance(encoding.get("explode"), bool) else style == "form"
            reserved = encoding.get("allowReserved") is True
        elif isinstance(encoding.get("contentType"), str):
            of_member = _plain_media_type(encoding["contentType"].partition(",")[0])
        if media_type == _MULTIPART and of_member is None and self.is_binary(raw, pointer):
            of_member = _BINARY
        if of_member is not None and not _is_json(of_member) and not of_member.startswith("text/"):
            if media_type == _FORM:
                message = f"{shown(name)} as {of_member} cannot be a field"
                raise Lost("openapi.body.unsupported", message, pointer)
            schema = _as_text(schema, is_binary=True)
        return _Argument(
            name=name,
            place=Place.MEMBER,
            schema=schema,
            required=required,
            style=style,
            explode=explode,
            media_type=of_member,
            reserved=reserved,
        )

    def is_binary(self, value: JsonValue, pointer: Pointer) -> bool:
        value, pointer = self.resolver.follow(value, pointer)
        if not isinstance(value, dict):
            return False
        if value.get("type") == "array" and "items" in value:
            value, _ = self.resolver.follow(value["items"], (*pointer, "items"))
            if not isinstance(value, dict):
                return False
        kind = value.get("contentMediaType")
        is_bytes = isinstance(kind, str) and not kind.startswith("text/") and "contentEncoding" not in value
        return value.get("format") == "binary" or (is_bytes and not _is_json(str(kind)))

    # -- who sends it ---------------------------------------------------------------------------------------

    def credentials(self, operation: _Operation) -> tuple[Credential, ...]:
        """How the request is authenticated: the first way that the secrets allow."""
        is_own = "security" in operation.value
        told, place = self.part(
            operation.value if is_own else self.root, "security", operation.pointer if is_own else ()
        )
        if told is not None and not (isinstance(told, list) and all(isinstance(way, dict) for way in told)):
            # Attack: a request that goes out without the secret that its author asks for.
            message = f"security must be an array of objects, got {kind_of(told)}"
            raise Lost("openapi.security.unsupported", message, place)
        ways: list[JsonObject] = told or []
        if not ways:
            return ()
        known: list[tuple[Credential, ...]] = []
        for way in ways:
            made = [self.credential(name, alone=len(way) == 1) for name in way]
            if None not in made:
                known.append(tuple(one for one in made if one is not None))
        for credentials in known:
            if credentials and all(one.secret for one in credentials):
                self.secrets_used |= {one.secret for one in credentials}
                return credentials
        if {} in ways:
            return ()
        self.without_secret.append(operation.name)
        if known:
            return known[0]
        named = ", ".join(sorted({shown(name) for way in ways for name in way}))
        self.warn(
            "openapi.security.unsupported",
            f"{operation}: no way to authenticate that is supported (got {named})",
            place,
            "API keys, basic, bearer, OAuth 2 and OpenID Connect tokens are",
        )
        return (Credential(secret="", place=Place.HEADER, name="Authorization"),)

    def credential(self, name: str, *, alone: bool) -> Credential | None:
        """One scheme with its secret; None where we cannot do it."""
        try:
            scheme, around = self.part(self.root, "components", ())
            for step in ("securitySchemes", name):
                scheme, around = self.part(scheme if isinstance(scheme, dict) else {}, step, around)
        except Lost:
            return None
        if not isinstance(scheme, dict):
            return None
        secret = self.secrets.get(name) or (self.secrets.get("", "") if alone else "")
        match scheme.get("type"):
            case "apiKey":
                place, key = scheme.get("in"), scheme.get("name")
                if place not in ("header", "query", "cookie") or not isinstance(key, str):
                    return None
                if not key or (place != "query" and not _TOKEN.fullmatch(key)):
                    return None
                if place == "header" and key.lower() in _CLIENT_HEADERS:
                    return None
                return Credential(secret=secret, place=Place(place), name=key)
            case "http":
                kind = str(scheme.get("scheme", "")).lower()
                if kind not in ("bearer", "basic"):
                    return None
                prefix = f"{kind.capitalize()} "
            case "oauth2" | "openIdConnect":
                prefix = "Bearer "
            case _:
                return None
        return Credential(secret=secret, place=Place.HEADER, name="Authorization", prefix=prefix)

    # -- the answer -----------------------------------------------------------------------------------------

    def output(self, operation: _Operation) -> tuple[str, JsonObject | None]:
        """What the request asks to get, and the schema of that where it is JSON and short."""
        try:
            told, around = self.part(operation.value, "responses", operation.pointer)
        except Lost:
            told, around = None, ()
        responses = told if isinstance(told, dict) else {}
        good = sorted(status for status in responses if status.startswith("2"))
        for status in good:
            try:
                response, pointer = self.part(responses, status, around)
                content, pointer = self.part(
                    response if isinstance(response, dict) else {}, "content", pointer
                )
                if not isinstance(content, dict) or not content:
                    continue
                written = next((kind for kind in content if _is_json(_plain_media_type(kind) or "")), None)
                if written is None:
                    plain = [_plain_media_type(kind) for kind in content]
                    return next((kind for kind in plain if kind and "*" not in kind), "*/*"), None
                accept = _plain_media_type(written) or "application/json"
                media, pointer = self.part(content, written, pointer)
                raw = media.get("schema") if isinstance(media, dict) else None
                place: Pointer = (*pointer, "schema")
                if not isinstance(raw, dict) or self.types(raw, place) != {"object"}:
                    return accept, None
                schema = self.responses.translated(raw, place)
                if isinstance(schema, dict) and "$ref" in schema:
                    schema = {"type": "object", **schema}
                assert isinstance(schema, dict)
                made = self.responses.assembled_small(schema, OUTPUT_PARTS_MAX, OUTPUT_BYTES_MAX)
                self.without_output += made is None
                return accept, made
            except Lost:
                self.without_output += 1
                return "application/json", None
        return "*/*", None


# -- names and texts ----------------------------------------------------------------------------------------


def _say_nothing(code: str, message: str, pointer: Pointer, hint: str | None) -> None:
    """Schemas of answers bind nobody: what is odd in them is left out in silence."""


def _scope(document: Document, root: JsonObject) -> str:
    """What holds the tools: the source's name, the file's, or the title of the document.

    Attack: a document that calls itself as another one would get what was granted to that one's tools, so
    the name that its owner gave the file comes before the title.
    """
    if document.openapi is not None and document.openapi.name:
        return document.openapi.name
    path = document.path
    if path.startswith(("http://", "https://")):
        path = path.partition("?")[0]
    stem = path.rpartition("/")[2]
    for suffix in (".json", ".yaml", ".yml"):
        stem = stem.removesuffix(suffix)
    info = root.get("info")
    title = info.get("title") if isinstance(info, dict) else None
    spoken = _slug(title) if isinstance(title, str) else ""
    if _slug(stem) and (stem.lower() not in _GENERIC_STEMS or not spoken):
        return _slug(stem)
    return spoken or "api"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._")[:NAME_CHARS_MAX]


def _legal(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:NAME_CHARS_MAX]


def _argument_name(argument: _Argument, taken: set[str]) -> str:
    """The name that models use: the provider's where every provider takes it and nobody else has it."""
    legal = re.sub(r"[^A-Za-z0-9_]+", "_", argument.name)
    if legal != argument.name:
        legal = legal.strip("_")
    if not legal or legal[0].isdecimal():
        legal = f"n{legal}"
    name = legal[:NAME_CHARS_MAX]
    if name in taken:
        where = "body" if argument.place is Place.MEMBER else argument.place.value
        return distinct(f"{name[: NAME_CHARS_MAX - 12]}_{where}", taken)
    taken.add(name)
    return name


def _description(operation: _Operation, *, is_deprecated: bool) -> str:
    said = [operation.value.get("summary"), operation.value.get("description")]
    texts = [text.strip() for text in said if isinstance(text, str) and text.strip()]
    if len(texts) == 2 and texts[1].startswith(texts[0]):
        del texts[0]
    text = "\n\n".join(texts) or str(operation)
    if is_deprecated:
        text = f"Deprecated. {text}"
    return text if len(text) <= DESCRIPTION_CHARS_MAX else text[: DESCRIPTION_CHARS_MAX - 1].rstrip() + "…"


def _described(schema: JsonValue, holder: JsonObject) -> JsonValue:
    """A schema with what its holder says about it."""
    made: JsonObject = schema if isinstance(schema, dict) else ({} if schema else {"not": {}})
    told = holder.get("description")
    if isinstance(told, str) and told.strip():
        made = {**made, "description": told.strip()[:DESCRIPTION_CHARS_MAX]}
    if holder.get("deprecated") is True:
        made = {**made, "deprecated": True}
    return made


def _as_text(schema: JsonValue, *, is_binary: bool) -> JsonObject:
    """The schema of bytes or text that an argument holds as a string."""
    given = schema if isinstance(schema, dict) else {}
    if given.get("type") == "array" and is_binary:
        return {**given, "items": _as_text(given.get("items", {}), is_binary=True)}
    about = {key: given[key] for key in ("title", "description") if key in given}
    if not is_binary:
        return {**given, "type": "string"} if "$ref" not in given else {**about, "type": "string"}
    told = about.get("description")
    about["description"] = f"{told} (as base64)" if told else "The bytes as base64."
    return {"type": "string", **about, "contentEncoding": "base64"}


def _secrets(told: str) -> dict[str, str]:
    """The secrets by scheme; under the empty name the one for whichever scheme there is."""
    if "=" not in told:
        return {"": told.strip()}
    found = {}
    for part in told.split(","):
        scheme, _, name = part.partition("=")
        found[scheme.strip()] = name.strip()
    return found


def _texts(value: JsonValue) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _count_of(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0


# -- addresses and media types ------------------------------------------------------------------------------


def _unusable(url: str, base: str) -> str | None:
    """Why requests cannot be sent to an address; None where they can."""
    if url and not _URL.fullmatch(url):
        # Attack: line breaks, which the library that takes addresses apart leaves out in silence.
        return "has parts that a server's address may not have"
    try:
        whole = urlsplit(urljoin(base, url))
        port_fits = whole.port is None or whole.port > 0
    except ValueError:
        return "is not an address"
    if not whole.scheme and not whole.netloc:
        return "is relative, and where the document comes from is not known"
    if whole.scheme not in ("http", "https"):
        return "is not an address of the web"
    if not whole.hostname or not port_fits:
        return "is not an address"
    if whole.username is not None or whole.password is not None:
        return "holds credentials, which no document should"
    if whole.query or whole.fragment:
        return "has parts that a server's address may not have"
    return None


def _literal(text: str, place: Pointer) -> str:
    """A part of a path between its marks."""
    if "?" in text or "#" in text or "{" in text or "}" in text:
        raise Lost(
            "openapi.path.shape",
            f"a path must not have ?, # or single braces (got {shown(text)})",
            place,
            "declare what follows ? as parameters in the query",
        )
    return quote(text, safe="/:@!$&'()*+,;=~%")


def _plain_media_type(written: str) -> str | None:
    """A media type without its parameters; None where it is none."""
    text = written.partition(";")[0].strip().lower()
    if text in ("*/*", "application/*"):
        return "application/json"
    return text if _MEDIA_TYPE.fullmatch(text) else None


def _is_json(media_type: str) -> bool:
    return media_type == "application/json" or media_type.endswith("+json")


def _chosen(content: JsonObject) -> tuple[str, str] | None:
    """Of the media types of a body the one we write best: as written, and plain."""
    ranked = []
    for number, written in enumerate(content):
        kind = _plain_media_type(written)
        if kind is None:
            continue
        if kind == "application/json":
            rank = 0
        elif _is_json(kind):
            rank = 1
        elif kind in (_FORM, _MULTIPART):
            rank = 2
        elif kind.startswith("text/"):
            rank = 3 if kind == "text/plain" else 4
        elif kind == _BINARY or kind.startswith(("image/", "audio/", "video/")):
            rank = 5
        else:
            continue
        ranked.append((rank, number, written, kind))
    return min(ranked)[2:] if ranked else None
