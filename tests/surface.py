"""The public surface as entries: what people and programs rely on, read from the running program.

``collect`` reads the program's own tables, and asks a real server where no table lists what is answered.
``python -m tests.surface`` (``make surface``) writes the entries to ``surface.toml``, one to a line;
``test_surface.py`` compares.
"""

from __future__ import annotations

import ast
import asyncio
import enum
import inspect
import json
import pkgutil
import re
import tempfile
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click
import httpx
from mcp import types as sdk
from msgspec import NODEFAULT, Struct
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import toolcrib
import toolcrib.testing
from tests.codes import codes
from tests.doors.web import Served, echoing, served
from tests.mcp_client import META, NEWER, OLDER, Pipe, enveloped, request
from tests.program import PROGRAM, environment
from tests.syntax import tree
from toolcrib import config, errors, former, mcp_wire
from toolcrib.app import Crib
from toolcrib.doors import cli
from toolcrib.doors._crew import Crew
from toolcrib.doors._events import EventKind, Events
from toolcrib.doors._mcp_desk import CHANGES
from toolcrib.doors._shapes import SHAPES
from toolcrib.doors.console import _site
from toolcrib.doors.console._serving import Serving
from toolcrib.doors.http import _WRONG, ROUTES
from toolcrib.jsontext import JsonObject
from toolcrib.model import ToolCall
from toolcrib.spans import set_up
from toolcrib.trust import rules
from toolcrib.trust.secrets import PASSPHRASE

Entries = dict[str, str]

FILE: Final = Path(__file__).with_name("surface.toml")
SOURCE: Final = Path(toolcrib.__file__).parent
PACKAGE: Final = toolcrib.__name__
HEAD: Final = """\
# What people and programs rely on: commands, options, routes, keys, names. `make surface` writes this file.
# If an entry is lost or changes, CHANGELOG.md says so under "Unreleased".
"""


def collect(folder: Path) -> dict[str, Entries]:
    """Return all entries by section. ``folder`` is empty; a crib is opened in it and served."""
    with echoing(folder) as crib, served(crib) as server:
        pages = _site.site(Serving(crib=crib, events=server.events))._app
        return {
            "commands": dict(_commands()),
            "exit codes": dict(_exit_codes()),
            "error kinds": dict(_kinds()),
            "problem codes": dict.fromkeys(codes(), ""),
            "configuration": dict(_keys()),
            "environment": dict(_variables()),
            "http routes": dict(_routes(server)),
            "http values": dict(_shapes()),
            "http events": {kind.value: "" for kind in EventKind},
            "console pages": {route.path: _listed(route.methods) for route in pages.routes},  # type: ignore[attr-defined]
            "metrics": _metrics(server),
            "spans": _spans(crib),
            "mcp methods": _methods(server, folder),
            "mcp capabilities": dict(_capabilities(server)),
            **_names(crib),
        }


# -- the command line ---------------------------------------------------------------------------------------


def _commands() -> Iterator[tuple[str, str]]:
    shared = {_option(option) for option in cli.group.params}

    def walk(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
        context = click.Context(command, parent, name, **command.context_settings)
        options = dict(_option(each) for each in command.get_params(context))
        own = {key: about for key, about in options.items() if parent is None or (key, about) not in shared}
        hidden = "; hidden" if command.hidden else ""
        common = " ".join(sorted(options.keys() - own.keys()))
        usage = " ".join(command.collect_usage_pieces(context))
        yield name, f"{usage}{hidden}" + (f"; as {PACKAGE}: {common}" if common else "")
        for key, about in own.items():
            yield f"{name} {key}", about
        if isinstance(command, click.Group):
            for each in command.list_commands(context):
                inner = command.get_command(context, each)
                assert inner is not None
                yield from walk(inner, f"{name} {each}", context)

    return walk(cli.group, PACKAGE, None)


def _option(parameter: click.Parameter) -> tuple[str, str]:
    longest = max(parameter.opts, key=len)
    if isinstance(parameter, click.Argument):
        longest = parameter.make_metavar(click.Context(click.Command("x")))
    about = [*sorted({*parameter.opts, *parameter.secondary_opts} - {longest})]
    if isinstance(parameter.type, click.Choice):
        about.append(f"one of {_listed(parameter.type.choices)}")
    elif not getattr(parameter, "is_flag", False):
        about.append(parameter.type.name)
        ends = {end: getattr(parameter.type, end, None) for end in ("min", "max")}
        about += [f"{end} {value}" for end, value in ends.items() if value is not None]
    for flag in ("is_flag", "count", "multiple", "required", "hidden", "prompt"):
        if getattr(parameter, flag, False):
            about.append(flag.removeprefix("is_"))
    if parameter.nargs != 1:
        about.append(f"nargs {parameter.nargs}")
    if isinstance(parameter.envvar, str):
        about.append(f"from {parameter.envvar}")
    if isinstance(parameter.default, str | int | float) and parameter.default not in ("", False):
        about.append(f"default {parameter.default}")
    return longest, ", ".join(about)


def _exit_codes() -> Iterator[tuple[str, str]]:
    """Yield the status of each exception, and of each command the statuses that its module names."""
    for name, value in vars(errors).items():
        if isinstance(value, type) and isinstance(getattr(value, "exit_code", None), int):
            yield name, str(value.exit_code)  # type: ignore[attr-defined]
    yield PACKAGE, _listed(_statuses(cli))
    for found in pkgutil.iter_modules(cli.__path__):
        statuses = _statuses(import_module(f"{cli.__name__}.{found.name}"))
        if statuses:
            shared = "shared by commands: " if found.name.startswith("_") else ""
            yield f"{shared}{PACKAGE} {found.name.lstrip('_')}", _listed(statuses)


def _statuses(module: ModuleType) -> set[str]:
    """Return the statuses in a module's ``return`` statements, and those of exceptions that it defines."""
    assert module.__file__ is not None
    found = set()
    pending: list[ast.expr | None] = []
    for node in ast.walk(tree(Path(module.__file__))):
        if isinstance(node, ast.Return):
            pending.append(node.value)
        elif isinstance(node, ast.ClassDef):
            status = getattr(getattr(module, node.name, None), "exit_code", None)
            found |= {str(status)} if status is not None else set()
    for value in pending:
        if isinstance(value, ast.IfExp):
            pending += [value.body, value.orelse]
        elif isinstance(value, ast.Attribute) and value.attr == "exit_code":
            found.add("that of the error")
        else:
            name, literal = getattr(value, "id", ""), getattr(value, "value", None)
            status = getattr(module, name, None) if name else literal
            if type(status) is int and status > 1:
                found.add(str(status))
    return found


def _kinds() -> Iterator[tuple[str, str]]:
    for kind, row in errors.KINDS.items():
        rpc = "a result" if row.rpc_code is None else f"error {row.rpc_code}"
        yield kind.value, f"exit {row.exit_code}, HTTP {row.http_status}, MCP {rpc}"


# -- configuration ------------------------------------------------------------------------------------------

_TABLES: Final = {
    "_SOURCE_KEYS": "[[source]]",
    "_PROXY_KEYS": "[http.proxy]",
    "_POLICY_KEYS": "[[policy]]",
    "_BUDGET_KEYS": "[[budget]]",
    "_GRANT_KEYS": '[grants."PATTERN"]',
    "_TOOL_KEYS": '[tools."PATTERN"]',
}
"""How people write the tables of ``config.py``; one that is missing here is a KeyError."""


def _keys() -> Iterator[tuple[str, str]]:
    tables = {f"[{name}]": keys for name, keys in config._SECTIONS.items()}
    for name, value in vars(config).items():
        if isinstance(value, dict) and all(isinstance(key, config._Key) for key in value.values()):
            tables[_TABLES[name]] = value
    for table, keys in tables.items():
        for name, key in keys.items():
            bounds = config._SERVE_BOUNDS.get(name) if table == "[serve]" else None
            between = f", {bounds[0]} to {bounds[1]}" if bounds else ""
            yield f"{table} {name}", f"{_kind(key)}{between}, {_who(key)}"
    for name in config._TOP:
        if not any(re.match(rf"\[+{name}\b", table) for table in tables):
            yield f"[{name}]", "table"
    for name in rules.SUBJECTS:
        yield f"[[policy]] match.{name}", ""
    for name in rules.TEST_KEYS:
        yield f"[[policy]] match.arguments.NAME.{name}", ""
    for name in rules._EXAMPLE_KEYS:
        yield f"[[policy]] examples.{name}", ""


def _kind(key: config._Key) -> str:
    kinds = key.kind if isinstance(key.kind, tuple) else (key.kind,)
    kind = f"one of {_listed(key.choices)}" if key.choices else " or ".join(each.__name__ for each in kinds)
    return f"{kind} of {_kind(key.items)}" if key.items is not None else kind


def _who(key: config._Key) -> str:
    if isinstance(key.widens, str):
        return f"any file as far as {key.widens}"
    if not key.widens:
        return "any file"
    harmless = "".join(f", or to {json.dumps(value)}" for value in key.harmless)
    return f"set by trusted files{harmless}"


class _Recording(dict[str, str]):
    """An environment that keeps the names it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)


def _variables() -> Iterator[tuple[str, str]]:
    """Yield the variables that are read at the start, and those that are looked up in the snapshot later."""
    recording = _Recording()
    config.Environment.read(recording)
    found = {*recording.asked, f"_{PACKAGE.upper()}_COMPLETE"}  # the latter is read by click
    for path in _files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call | ast.Compare | ast.Subscript):
                parts = [*ast.iter_child_nodes(node)]
                parts += [part.value for part in parts if isinstance(part, ast.Attribute)]
                if any(_is_snapshot(part) for part in parts):
                    names = (part.value for part in parts if isinstance(part, ast.Constant))
                    found |= {name for name in names if isinstance(name, str) and name.isupper()}
    for name in found:
        yield name, "refused: a former name" if name == former.name_of(PASSPHRASE) else ""


def _is_snapshot(node: ast.AST) -> bool:
    return "variables" in (getattr(node, "attr", ""), getattr(node, "id", ""))


# -- the server ---------------------------------------------------------------------------------------------


def _routes(server: Served) -> Iterator[tuple[str, str]]:
    for route in ROUTES:
        key = f"{route.method} {route.path}"
        right = f", right {route.right.value}" if route.right is not None else ""
        yield key, f"{route.name}: {_listed(map(str, sorted(route.replies)))}{right}"
        for status, reply in route.replies.items():
            contents = [f"{media}: {_schema(schema)}" for media, schema in reply.contents.items()]
            yield f"{key} -> {status}", "; ".join([*contents, *(f"header {name}" for name in reply.headers)])
        for parameter in route.parameters:
            yield f"{key} {parameter.place} {parameter.name}", _schema(parameter.schema)
        if route.body is not None:
            for name, about in _members(route.body):
                yield f"{key} body{name}", about
    yield "every route", f"{_listed(str(status.value) for status, _ in _WRONG)}: Problem"
    refused = server.client.put("/mcp")
    yield "/mcp", refused.headers["allow"]


def _shapes() -> Iterator[tuple[str, str]]:
    for name, schema in SHAPES.items():
        for member, about in _members(schema):
            yield f"{name}{member}", about


def _members(schema: JsonObject, optional: str = "") -> Iterator[tuple[str, str]]:
    """Yield every member of an object's schema, the nested ones by their path."""
    yield "", _schema(schema) + optional
    inner = schema.get("items")
    if isinstance(inner, dict) and "properties" in inner:
        for key, about in _members(inner):
            yield f"[]{key}", about
    for name, member in schema.get("properties", {}).items():
        left_out = "" if name in schema.get("required", ()) else ", optional"
        for key, about in _members(member, left_out):
            yield f".{name}{key}", about


_PROSE: Final = ("description", "title", "properties", "required")


def _schema(schema: JsonObject) -> str:
    """Return a schema in a line, without its texts and without members, which have lines of their own."""
    rest = {name: value for name, value in schema.items() if name not in _PROSE}
    if set(rest) == {"$ref"}:
        return str(rest["$ref"]).rpartition("/")[2]
    if isinstance(rest.get("items"), dict):
        rest["items"] = _schema(rest["items"])
    for name in ("anyOf", "oneOf", "allOf"):
        if name in rest:
            rest[name] = [_schema(each) for each in rest[name]]
    kind = rest.pop("type", None)
    words = ["|".join(kind)] if isinstance(kind, list) else [kind] if kind else []
    return ", ".join([*words, *(f"{name}: {_json(value)}" for name, value in sorted(rest.items()))])


def _json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_SAMPLE: Final = re.compile(r"([a-z_]+)(?:\{(.*)\})? \S+")
_LABEL: Final = re.compile(r'([a-z_]+)="(?:[^"\\]|\\.)*"')


def _metrics(server: Served) -> Entries:
    """Return the metrics of a server that took a call, by name: kind and labels."""
    assert server.call("echo", {"text": "x"}).status_code == 200
    server.settle()
    found: Entries = {}
    for line in server.get("/metrics").text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            found[name] = kind
        elif (sample := _SAMPLE.fullmatch(line)) is not None:
            name, labels = sample[1], _listed(_LABEL.findall(sample[2] or ""))
            base = re.sub("_(bucket|sum|count)$", "", name)
            if base in found and name not in found:
                found[name] = f"of {base}: {labels}"
            elif labels and ":" not in found[name]:
                found[name] += f": {labels}"
    return found


def _spans(crib: Crib) -> Entries:
    """Return the attributes of spans, of calls that work, fail, or name no tool."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = set_up(provider)
    assert spans is not None
    crew = Crew(crib, Events(), spans=spans)
    for tool, arguments in (("echo", {"text": "x"}), ("fail", {}), ("none", {})):
        call = ToolCall(id=crib.new_call_id(), tool=tool, arguments=arguments, caller="ann")
        asyncio.run(crew.call(call, door="http"))
    assert crew.drain(30)
    found: Entries = {}
    for span in exporter.get_finished_spans():
        word = span.name.partition(" ")[0]
        found[f"{word} TOOL"] = span.kind.name.lower()
        for name, value in (span.attributes or {}).items():
            found[f"{word} TOOL: {name}"] = type(value).__name__
    return found


# -- MCP ----------------------------------------------------------------------------------------------------


def _candidates() -> list[str]:
    """Return every method of the protocol's own types, and every text of ours that could be one."""
    found = set()
    for each in vars(sdk).values():
        field = getattr(each, "model_fields", {}).get("method")
        found |= {*typing.get_args(field.annotation)} if field is not None else set()
    for path in _files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {*re.findall(r"^[a-z]+(?:/[a-zA-Z_]+)+$", node.value)}
    return sorted(name for name in found if isinstance(name, str) and not name.startswith("notifications/"))


def _methods(server: Served, folder: Path) -> Entries:
    """Ask for every method over both transports in both eras; return those that are answered."""
    answered: dict[str, list[str]] = {}
    for way, ask in _ways(server, folder):
        for method in _candidates():
            if ask(method):
                answered.setdefault(method, []).append(way)
    found = {method: _listed(ways) for method, ways in answered.items()}
    for path in _files():
        for node in ast.walk(tree(path)):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"notifications/[\w/]+", text):
                found[text] = "notification"
    found |= dict.fromkeys(CHANGES, "notification")
    found[f"_meta {mcp_wire.IDEMPOTENCY_KEY}"] = "read"
    return found


def _ways(server: Served, folder: Path) -> Iterator[tuple[str, Callable[[str], bool]]]:
    yield f"http {NEWER}", lambda method: _is_answer(_ask(server, method))
    session = _initialize(server)
    yield f"http {OLDER}", lambda method: _is_answer(_ask(server, method, session))
    tools = folder / "tools"
    tools.mkdir()
    for era in (NEWER, OLDER):
        with Pipe(PROGRAM, "--from", str(tools), "serve", "--stdio", env=environment(folder)) as pipe:
            if era == OLDER:
                pipe.begin()

            def ask(method: str, era: str = era, pipe: Pipe = pipe) -> bool:
                body = request(method, {}, method) if era == OLDER else enveloped(method, {})[0]
                pipe.write({**body, "id": method})
                while True:
                    message = pipe.read()
                    if message.get("id") == method or "acknowledged" in message.get("method", ""):
                        return _is_answer(message)

            yield f"stdio {era}", ask


_NOT_ANSWERED: Final = (mcp_wire.METHOD_NOT_FOUND, mcp_wire.UNSUPPORTED_VERSION)


def _is_answer(message: Any) -> bool:
    return message.get("error", {}).get("code") not in _NOT_ANSWERED


def _ask(server: Served, method: str, session: Mapping[str, str] | None = None) -> Any:
    """Return the first message of the answer to a request."""
    body, headers = (request(method, {}), session) if session is not None else enveloped(method, {})
    accepted = {**_ACCEPTED, **{name: text for name, text in headers.items() if text is not None}}
    with server.client.stream("POST", "/mcp", json=body, headers=accepted) as response:
        if response.headers.get("content-type") != "text/event-stream":
            return json.loads(response.read())
        return next(json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {"))


_ACCEPTED: Final = {"accept": "application/json, text/event-stream"}


def _initialize(server: Served) -> dict[str, str]:
    response = _initialized(server, OLDER)
    return {"mcp-session-id": response.headers["mcp-session-id"], "mcp-protocol-version": OLDER}


def _initialized(server: Served, version: str) -> httpx.Response:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    return server.post("/mcp", request("initialize", params), headers=_ACCEPTED)


def _capabilities(server: Served) -> Iterator[tuple[str, str]]:
    for version in mcp_wire.OLDER:
        result = _initialized(server, version).json()["result"]
        yield from _leaves(f"{result['protocolVersion']} ", result["capabilities"])
    discovered = _ask(server, "server/discover")["result"]
    for version in discovered["supportedVersions"]:
        yield from _leaves(f"{version} ", discovered["capabilities"])
    for name in (*discovered, *discovered["_meta"]):
        yield f"server/discover {name.removeprefix(META)}", ""


def _leaves(place: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{place}{'' if place.endswith(' ') else '.'}{name}", inner)
    else:
        yield place, json.dumps(value)


# -- Python -------------------------------------------------------------------------------------------------


def _names(crib: Crib) -> dict[str, Entries]:
    """Return the public names with their signatures, and the fields of the values that they lead to."""
    found = _Names()
    public = {name: getattr(toolcrib, name) for name in toolcrib.__all__}
    doubles = {
        name: value
        for name, value in vars(toolcrib.testing).items()
        if getattr(value, "__module__", "") == toolcrib.testing.__name__ and not name.startswith("_")
    }
    for name, value in public.items():
        found.seen.add(value if isinstance(value, type) else type(value))
        found.add(name, value)
    for name in sorted(vars(crib)):
        if not name.startswith("_"):
            found.entries[f"{type(crib).__name__}.{name}"] = "attribute"
    mine, found.entries = found.entries, {}
    for name, value in doubles.items():
        found.add(name, value)
    testing, found.entries = found.entries, {}
    while found.reached:
        value = found.reached.pop()
        if value not in found.seen:
            found.seen.add(value)
            name = value.__name__
            is_taken = name in found.entries
            found.add(f"{value.__module__.rpartition('.')[2]}.{name}" if is_taken else name, value)
    return {
        f"python {PACKAGE}": mine,
        f"python {PACKAGE}.testing": testing,
        "python values": found.entries,
    }


class _Names:
    """Entries of Python names, and the types of values that their annotations name."""

    def __init__(self) -> None:
        self.entries: Entries = {}
        self.reached: list[type] = []
        self.seen: set[type] = set()

    def add(self, name: str, value: object) -> None:
        if not isinstance(value, type):
            is_function = inspect.isfunction(value)
            said = self.signature(value, value.__module__) if is_function else type(value).__name__
            self.entries[name] = said
        elif issubclass(value, enum.Enum):
            self.entries[name] = "enumeration"
            for member in value:
                self.entries[f"{name}.{member.name}"] = str(member.value)
        elif is_value(value):
            self.fields(name, value)
            self.methods(name, value)
        else:
            bases = [base.__name__ for base in value.__bases__ if base is not object]
            self.entries[name] = " ".join(["class", *bases, self.signature(value, value.__module__)])
            self.methods(name, value)

    def fields(self, name: str, value: type) -> None:
        fields = dict(fields_of(value))
        places = [field for field in fields if field in places_of(value)]
        frozen = "frozen value" if is_frozen(value) else "value"
        self.entries[name] = frozen + (f", by place: {_listed(places)}" if places else "")
        written: dict[str, tuple[Any, str]] = {}
        for base in reversed(value.__mro__):
            annotations = inspect.get_annotations(base)
            written |= {field: (text, base.__module__) for field, text in annotations.items()}
        for field, default in fields.items():
            if not field.startswith("_"):
                text, module = written[field]
                self.entries[f"{name}.{field}"] = self.type(text, module) + _default(default)

    def methods(self, name: str, value: type) -> None:
        for base in reversed(value.__mro__):
            if not base.__module__.startswith(PACKAGE):
                continue
            for member, found in vars(base).items():
                key = f"{name}.{member}"
                if member.startswith("_") and member not in ("__call__", "__enter__", "__aenter__"):
                    continue
                found = inspect.unwrap(getattr(found, "__func__", found))
                if isinstance(found, property | cached_property):
                    getter = found.fget if isinstance(found, property) else found.func
                    returned = inspect.get_annotations(getter).get("return", "")  # type: ignore[arg-type]
                    self.entries[key] = f"-> {self.type(returned, base.__module__)}"
                elif inspect.isfunction(found):
                    self.entries[f"{key}()"] = self.signature(found, found.__module__)

    def signature(self, value: Any, module: str) -> str:
        signature = inspect.signature(value)
        parts, is_starred = [], False
        for parameter in signature.parameters.values():
            if parameter.name == "self":
                continue
            if parameter.kind is parameter.KEYWORD_ONLY and not is_starred:
                parts.append("*")
            is_starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
            star = "*" * (parameter.kind is parameter.VAR_POSITIONAL)
            star += "**" * (parameter.kind is parameter.VAR_KEYWORD)
            text = "" if parameter.annotation is parameter.empty else self.type(parameter.annotation, module)
            parts.append(f"{star}{parameter.name}{f': {text}' if text else ''}{_default(parameter.default)}")
            if parameter.kind is parameter.POSITIONAL_ONLY:
                parts.append("/")
        returned = signature.return_annotation
        is_none = returned in (signature.empty, None, "None")
        arrow = "" if is_none else f" -> {self.type(returned, module)}"
        return f"({', '.join(parts)}){arrow}"

    def type(self, annotation: Any, module: str) -> str:
        """Return an annotation as it is written, without modules; note the values that it names."""
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        for name in re.findall(r"\w+", text):
            self.reach(_resolved(name, module))
        return re.sub(r"\b[a-z_][\w.]*\.(?=\w)", "", text)

    def reach(self, found: object) -> None:
        """Note a value, or those of an alias."""
        for each in typing.get_args(found):
            self.reach(each)
        if isinstance(found, type) and found.__module__.startswith(f"{PACKAGE}."):
            is_data = is_value(found) or issubclass(found, enum.Enum)
            self.reached += [found] if is_data and not found.__name__.startswith("_") else []


def is_value(value: type) -> bool:
    return issubclass(value, Struct)


def is_frozen(value: type) -> bool:
    return bool(value.__struct_config__.frozen)  # type: ignore[attr-defined]


def _resolved(name: str, module: str) -> object:
    """Return what a name means in a module, also if only type checkers import it there."""
    found = getattr(import_module(module), name, None)
    if found is None and (place := _imported(module).get(name)) is not None:
        found = getattr(import_module(place), name, None)
    return found


_IMPORTED: Final[dict[str, dict[str, str]]] = {}


def _imported(module: str) -> dict[str, str]:
    if module not in _IMPORTED:
        file = import_module(module).__file__
        assert file is not None
        _IMPORTED[module] = {
            alias.name: node.module
            for node in ast.walk(tree(Path(file)))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}.")
            for alias in node.names
            if node.module is not None
        }
    return _IMPORTED[module]


def fields_of(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the fields of a value with their defaults."""
    fields, defaults = value.__struct_fields__, value.__struct_defaults__
    for field, default in zip(fields, (NODEFAULT,) * (len(fields) - len(defaults)) + defaults, strict=True):
        yield field, inspect.Parameter.empty if default is NODEFAULT else default


def places_of(value: Any) -> tuple[str, ...]:
    """Return the fields that may be given by their place."""
    places: tuple[str, ...] = value.__match_args__
    return places


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, enum.Enum):
        return f" = {value.value}"
    plain = value is None or isinstance(value, bool | int | float | str) or value == ()
    return f" = {value!r}" if plain else " = …"


# -- files --------------------------------------------------------------------------------------------------


def _files() -> Iterator[Path]:
    return (path for path in sorted(SOURCE.rglob("*.py")) if "templates" not in path.parts)


def _listed(words: Any) -> str:
    return ", ".join(sorted(words)) if isinstance(words, set | frozenset) else ", ".join(words)


def read() -> dict[str, Entries]:
    """Return the entries that were accepted."""
    return parsed(FILE.read_text(encoding="utf-8"))


def parsed(text: str) -> dict[str, Entries]:
    """Return entries that were written as TOML."""
    return tomllib.loads(text)


def text_of(surface: Mapping[str, Entries]) -> str:
    """Return entries as TOML, sorted, one to a line."""
    lines = [HEAD]
    for section, entries in surface.items():
        lines.append(f"[{json.dumps(section)}]\n")
        for name, about in sorted(entries.items()):
            lines.append(f"{_quoted(name)} = {_quoted(about)}\n")
        lines.append("\n")
    return "".join(lines).rstrip("\n") + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        surface = collect(Path(folder))
    FILE.write_text(text_of(surface), encoding="utf-8")


if __name__ == "__main__":
    main()
