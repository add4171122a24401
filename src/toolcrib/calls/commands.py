"""What a call would run, exactly: an invocation and its arguments become argv and stdin.

Caller data stays data: a value is one argv element or part of stdin, never a template, never read by a
shell, and a positional value never becomes an option. Nothing is started or looked up here; the runtimes
below do that with what this module says. Where values are resolved by running something first, that goes in
two steps: ``resolvers`` says what to run, and ``command`` takes what it printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from toolcrib import jsontext
from toolcrib.errors import Kind
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import (
    ArgMapping,
    AsArgv,
    CallFunction,
    CallHttp,
    CallJavaScript,
    CallMcp,
    CallPython,
    Flag,
    JavaScriptStyle,
    JsonOnStdin,
    NotCallable,
    Permit,
    Positional,
    PythonStyle,
    Resolver,
    RunContainer,
    RunProcess,
    Switch,
    Tool,
    ToolError,
)

ELEMENT_BYTES_MAX: Final = 128 * 1024 - 1
"""Linux starts no program with a longer argv element."""
ARGV_BYTES_MAX: Final = 1024 * 1024
"""All elements together: what macOS allows, and half of what Linux does."""

_PYTHON: Final = "python3"
_NODE: Final = "node"
_JSON_SPACE: Final = " \t\r\n"
_IMAGE: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,299}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEPS: Final = re.compile(r"[/\\]")
_SEPARATORS: Final = re.compile(r"[/\\\0]|^\.{0,2}$")


class Command(Struct, frozen=True, kw_only=True):
    """What one call would start."""

    cwd: str
    argv: tuple[str, ...] = ()
    """Empty where the call starts no process of its own; ``calls`` says what it does instead."""
    stdin: bytes | None = None
    """None: stdin is empty."""
    env_names: tuple[str, ...] = ()
    """The variables that the tool sets or asks for, besides the few that every process gets."""
    calls: str = ""
    notes: tuple[str, ...] = ()
    """What happens before the start and may change the command."""


class Resolving(Struct, frozen=True, kw_only=True):
    """A program that turns one value into another before the command is built: its output is the value."""

    place: int
    """Which mapping of the invocation it belongs to: a parameter may be mapped twice."""
    param: str
    value: str
    """The text as it is, which stays where the resolver fails."""
    argv: tuple[str, ...]
    """For a script with the first of ``scripts``; use the first of them that is a file."""
    script: str | None = None
    scripts: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    """What stands in ``argv`` after the script, or after binary and subcommand."""


class _Refused(Exception):
    def __init__(self, message: str, hint: str | None = None, kind: Kind = Kind.INVALID_ARGUMENTS) -> None:
        super().__init__(message)
        self.error = ToolError(kind=kind, message=message, hint=hint)


def command(
    tool: Tool, arguments: JsonValue, raw: str, *, cwd: str, resolved: Mapping[int, str] | None = None
) -> Command | ToolError:
    """The command of a call with these (checked) arguments, or why there is none.

    ``raw`` is the text of the arguments as it came, which some formats promise to hand over. ``cwd`` is the
    host's working directory; tools that are told their project are told this one. ``resolved`` holds what the
    resolvers printed, by their place; None: they have not run, and notes say which would.
    """
    if arguments is None and not raw.strip(_JSON_SPACE):
        arguments = {}
    if not isinstance(arguments, dict):
        return ToolError(kind=Kind.INVALID_ARGUMENTS, message="arguments must be an object")
    try:
        return _command(tool, arguments, raw, cwd, resolved)
    except _Refused as refused:
        return refused.error


def resolvers(tool: Tool, arguments: JsonObject, *, allow_scripts: bool) -> tuple[Resolving, ...]:
    """What to run before the command of these (checked) arguments can be built, in this order.

    Nothing where the command will be refused whatever they print.
    """
    run = tool.invocation
    if not isinstance(run, RunProcess) or not isinstance(run.encoding, AsArgv):
        return ()
    if not any(isinstance(arg, (Positional, Flag)) and arg.resolver is not None for arg in run.encoding.args):
        return ()
    found: list[Resolving] = []
    try:
        _check_pair(run, run.program, " ".join(run.fixed))
        for place, mapping, value in _values(run.encoding, arguments):
            if not isinstance(mapping, Switch):
                text = _text(mapping, value)
                if mapping.resolver is not None:
                    found += _resolving(run, place, mapping.param, mapping.resolver, text, allow_scripts)
    except _Refused:
        return ()
    return tuple(found)


def resolver_scripts(run: RunProcess) -> Iterator[str]:
    """Every place in which a script lies that a call may run before its command."""
    if run.skill_dir is not None and isinstance(run.encoding, AsArgv):
        for arg in run.encoding.args:
            if not isinstance(arg, Switch) and arg.resolver is not None and arg.resolver.script is not None:
                yield from _scripts(run.skill_dir, arg.resolver.script)


def _scripts(skill_dir: str, name: str) -> tuple[str, ...]:
    """Where a script of this name may lie: the first that is a file is meant.

    Attack: a name that leads out of the skill's scripts. Loading refuses it; so does this.
    """
    path = f"{skill_dir}/scripts/{name}"
    return () if _SEPARATORS.search(name) else (path, f"{path}.sh")


def _command(
    tool: Tool, arguments: JsonObject, raw: str, cwd: str, resolved: Mapping[int, str] | None
) -> Command:
    match tool.invocation:
        case RunProcess() as run:
            return _process(tool, run, arguments, raw, cwd, resolved)
        case CallPython(style=PythonStyle.SCRIPT, file=file, settings=settings) if file is not None:
            return Command(
                cwd=cwd,
                argv=(_PYTHON, file, *_script_options(settings, arguments, cwd)),
                stdin=_json(arguments),
                env_names=tool.needs.env,
                notes=(f"{_PYTHON} stands for the interpreter that is chosen at the call",),
            )
        case CallPython(style=PythonStyle.HANDLER, executor=executor, file=file):
            calls = f'execute_{executor}_tool("{tool.name}", arguments) of the handlers "{executor}"'
            return Command(cwd=cwd, calls=f"{calls} in {file}" if file is not None else calls)
        case CallPython(file=file):
            calls = f"execute(params, project_path) of {file}"
        case CallJavaScript(style=JavaScriptStyle.SCRIPT, file=file):
            return Command(
                cwd=cwd,
                argv=(_NODE, file, "--project-path", cwd),
                stdin=_json(arguments),
                env_names=tool.needs.env,
                notes=(f"{_NODE} stands for the interpreter that is chosen at the call",),
            )
        case CallJavaScript(file=file):
            calls = f"the default export of {file}, with the arguments"
        case CallMcp(server=server, tool=remote):
            calls = f'the tool "{remote}" of the MCP server "{server}"'
        case CallHttp(method=method, url=url):
            calls = f"{method} {url}, with the arguments"
        case CallFunction(name=name):
            calls = f"the function {name} that the host registered"
        case RunContainer() as container:
            return Command(
                cwd=cwd,
                argv=_container_argv(container, "docker", "toolcrib", Permit()),
                stdin=_json(arguments),
                env_names=container.env_names,
                notes=("engine, name, network and limits are those of the call",),
            )
        case NotCallable(reason=reason):
            raise _Refused(reason, kind=Kind.UNAVAILABLE)
    return Command(cwd=cwd, env_names=tool.needs.env, calls=calls)


def container(
    run: RunContainer, arguments: JsonObject, *, cwd: str, engine: str, name: str, permit: Permit
) -> Command | ToolError:
    """The command of a call that runs in a container of this name, inside its permit."""
    try:
        argv = _container_argv(run, engine, name, permit)
        return Command(cwd=cwd, argv=argv, stdin=_json(arguments), env_names=run.env_names)
    except _Refused as refused:
        return refused.error


def _container_argv(run: RunContainer, engine: str, name: str, permit: Permit) -> tuple[str, ...]:
    """What runs an image: nothing of this machine inside, no privileges, values only by name.

    Attack: an image called ``--privileged``, or a variable ``A=B``, that the engine reads as something else.
    The image must be on the machine already: a call does not fetch code that nobody looked at.
    """
    if not _IMAGE.fullmatch(run.image):
        raise _Refused(f"{run.image[:60]!r} is not the name of an image", kind=Kind.UNAVAILABLE)
    for variable in run.env_names:
        if not _VARIABLE.fullmatch(variable):
            raise _Refused(f"{variable[:60]!r} is not the name of a variable", kind=Kind.UNAVAILABLE)
    limits = permit.limits
    memory = str(limits.memory_bytes_max)
    entrypoint = ("--entrypoint", run.entrypoint) if run.entrypoint is not None else ()
    return (
        engine, "run", "--rm", "--interactive", "--init", "--pull", "never", "--name", name,
        "--network", "bridge" if permit.network else "none", "--read-only", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--pids-limit", str(limits.processes_max),
        "--memory", memory, "--memory-swap", memory,
        "--ulimit", f"nofile={limits.open_files_max}", "--ulimit", f"fsize={limits.file_bytes_max}",
        "--tmpfs", f"/tmp:rw,nosuid,nodev,size={limits.scratch_bytes_max}", "--log-driver", "none",
        *(part for variable in run.env_names for part in ("--env", variable)),
        *entrypoint, run.image, *run.command,
    )  # fmt: skip


def _script_options(settings: bytes, arguments: JsonObject, project: str) -> tuple[str, ...]:
    """What a Python script gets in argv: its project and, where its own parser declares the option, the
    parameters as one JSON text, which its stdin carries as well."""
    options = ("--project-path", project)
    if jsontext.loads_own(settings).get("params_option") is not True:
        return options
    return (*options, "--params", _element(_json(arguments).decode("utf-8"), "the arguments"))


def _process(
    tool: Tool,
    run: RunProcess,
    arguments: JsonObject,
    raw: str,
    cwd: str,
    resolved: Mapping[int, str] | None,
) -> Command:
    env_names = tuple(dict.fromkeys([*(name for name, _ in run.env), *tool.needs.env]))
    if isinstance(run.encoding, JsonOnStdin):
        verbatim = raw.strip(_JSON_SPACE) if run.encoding.verbatim else ""
        stdin = _encoded(verbatim, "the arguments") if verbatim else _json(arguments)
        return Command(cwd=cwd, argv=(run.program, *run.fixed), stdin=stdin, env_names=env_names)
    _check_pair(run, run.program, " ".join(run.fixed))
    fixed = run.fixed if run.allowlist is None else tuple(part for part in run.fixed if part)
    mapped, notes = _mapped(tool, run, run.encoding, arguments, resolved)
    argv = (run.program, *fixed, *mapped)
    if sum(len(_encoded(part, "an argument")) + 1 for part in argv) > ARGV_BYTES_MAX:
        raise _Refused(f"exec failed: argument too large (all together more than {ARGV_BYTES_MAX} bytes)")
    return Command(cwd=cwd, argv=argv, env_names=env_names, notes=notes)


# -- arguments as JSON --------------------------------------------------------------------------------------


def _json(arguments: JsonObject) -> bytes:
    try:
        return jsontext.compact(arguments)
    except UnicodeEncodeError:
        raise _Refused("the arguments have a lone surrogate, which is no character") from None


def _encoded(text: str, whose: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # Attack: Python would turn some of them into raw bytes that were never checked as text.
        raise _Refused(f"exec failed: {whose} has a lone surrogate, which is no character") from None


# -- arguments as argv --------------------------------------------------------------------------------------


def _check_pair(run: RunProcess, binary: str, subcommand: str) -> None:
    """Attack: a command that nobody reviewed. Exact, case-sensitive, whole strings; no list, no rule."""
    if run.allowlist is None:
        return
    allowed = dict(run.allowlist)
    if binary not in allowed:
        raise _Refused(f"binary not allowlisted: {binary}", kind=Kind.DENIED)
    if subcommand not in allowed[binary]:
        raise _Refused(f"subcommand not allowlisted: {binary} {subcommand}", kind=Kind.DENIED)


def _values(encoding: AsArgv, arguments: JsonObject) -> Iterator[tuple[int, ArgMapping, JsonValue]]:
    """The mappings that have something to say about these arguments, each with its place and value."""
    if encoding.refuses_paths:
        for mapping in encoding.args:
            if not isinstance(mapping, Switch):
                _check_path(mapping.param, arguments.get(mapping.param))
    for place, mapping in enumerate(encoding.args):
        value = arguments.get(mapping.param)
        if isinstance(mapping, Positional) and mapping.param not in arguments:
            raise _Refused(f"missing parameter: {mapping.param}")
        if not isinstance(mapping, Flag) or value is not None:
            yield place, mapping, value


def _mapped(
    tool: Tool,
    run: RunProcess,
    encoding: AsArgv,
    arguments: JsonObject,
    resolved: Mapping[int, str] | None,
) -> tuple[list[str], tuple[str, ...]]:
    """What the mappings add to argv, in their order, and which resolvers would come first."""
    argv: list[str] = []
    notes: list[str] = []
    for place, mapping, value in _values(encoding, arguments):
        if isinstance(mapping, Switch):
            emitted = mapping.if_true if _is_true(value) else mapping.if_false
            argv += [emitted] if emitted is not None else []
            continue
        text = _text(mapping, value)
        if mapping.resolver is not None:
            if resolved is None:
                notes += _told(run, mapping.param, mapping.resolver, text)
            else:
                _check_resolver(run, mapping.resolver)
                printed = resolved.get(place, "").strip()
                if printed:
                    value = text = _element(printed, f"parameter {mapping.param}")
        if isinstance(mapping, Flag):
            # The option before it consumes the value, dash or not.
            argv += [f"{mapping.dashes}{mapping.flag}", text]
        else:
            _check_dash(tool, mapping, value, text)
            argv.append(text)
    return argv, tuple(notes)


def _is_true(value: JsonValue) -> bool:
    """True, "true" in any case, or a whole number other than 0; everything else is false."""
    if isinstance(value, str):
        return value.lower() == "true"
    return isinstance(value, int) and value != 0


def _text(mapping: Positional | Flag, value: JsonValue) -> str:
    """The value as one argv element."""
    param = mapping.param
    if not isinstance(value, (str, int, float)):
        raise _Refused(f"parameter {param} must be a string, number, or boolean")
    text = value if isinstance(value, str) else json.dumps(value)
    if mapping.normalize_newlines and isinstance(value, str):
        text = text.replace("\\n", "\n").replace("\\t", "\t")
    return _element(text, f"parameter {param}")


def _element(text: str, whose: str) -> str:
    """A text that can be one argv element."""
    if "\0" in text:
        # Attack: what was checked is longer than what the program would see.
        raise _Refused(f"exec failed: {whose} has a NUL character")
    if len(_encoded(text, whose)) > ELEMENT_BYTES_MAX:
        raise _Refused(f"exec failed: argument too large ({whose}, limit {ELEMENT_BYTES_MAX} bytes)")
    return text


def _check_dash(tool: Tool, mapping: Positional, value: JsonValue, text: str) -> None:
    """Attack: a positional value that the program would read as an option, past the allowlist.

    Checked on the final text. Where a resolver comes first and might still change it, the value is refused
    all the same: what is shown here is never an option in disguise.
    """
    if text.startswith("-") and not mapping.allow_leading_dash and not _admits(tool, mapping, value, text):
        raise _Refused(
            f"parameter {mapping.param} must not begin with '-'",
            "a value that begins with '-' would be read as an option",
        )


def _check_path(param: str, value: JsonValue) -> None:
    """Refuse a text that is a path out of the working directory, or into ``.git``.

    Attack: a path where the author expects none. Two slashes begin a comment in many languages, and pass.
    """
    if not isinstance(value, str):
        return
    parts = _STEPS.split(value)
    if value.startswith("/") and not value.startswith("//"):
        what = "received an absolute path"
    elif value.startswith("~"):
        what = "received a home-relative path"
    elif value.startswith("file://"):
        what = "received a file:// URL"
    elif ".git" in parts:
        what = "targets a .git directory"
    elif ".." in parts:
        what = "received a path with '..' traversal"
    else:
        return
    raise _Refused(
        f"parameter '{param}' {what} '{value[:60]}' but is not annotated as a path parameter",
        "give a text that leads nowhere outside of the working directory",
    )


def _admits(tool: Tool, mapping: Positional, value: JsonValue, text: str) -> bool:
    """Whether the author's schema names this very value, or negative numbers, for the parameter."""
    properties = tool.input_schema.document.get("properties") if tool.input_schema is not None else None
    schema = properties.get(mapping.param) if isinstance(properties, dict) else None
    if not isinstance(schema, dict):
        return False
    enum = schema.get("enum")
    named = [*(enum if isinstance(enum, list) else ()), *([schema["const"]] if "const" in schema else ())]
    if any(text == (item if isinstance(item, str) else json.dumps(item)) for item in named):
        return True
    kinds = schema.get("type")
    minimum = schema.get("minimum")
    return (
        isinstance(value, (int, float))
        and isinstance(minimum, (int, float))
        and minimum < 0
        and minimum <= value
        and any(kind in ("integer", "number") for kind in (kinds if isinstance(kinds, list) else [kinds]))
    )


# -- resolvers ----------------------------------------------------------------------------------------------


def _check_resolver(run: RunProcess, resolver: Resolver) -> None:
    if resolver.binary is not None and resolver.subcommand is not None:
        _check_pair(run, resolver.binary, resolver.subcommand)


def _would_run(resolver: Resolver, text: str) -> bool:
    """Attack: a value that begins with a dash would be an option of the resolver itself."""
    return not (text.startswith("-") and any(item.startswith("$param") for item in resolver.args))


def _resolving(
    run: RunProcess, place: int, param: str, resolver: Resolver, text: str, allow_scripts: bool
) -> Iterator[Resolving]:
    """What to run for one value: the script where scripts are allowed, and never the binary in its stead."""
    _check_resolver(run, resolver)
    if not _would_run(resolver, text):
        return
    # Once, and without looking into what was put in.
    args = tuple(item.replace("$param", text) for item in resolver.args)
    if any(len(item.encode("utf-8")) > ELEMENT_BYTES_MAX for item in args):
        return  # it could not be started, so the value stays
    if resolver.script is not None and allow_scripts:
        scripts = _scripts(run.skill_dir, resolver.script) if run.skill_dir is not None else ()
        if scripts:
            yield Resolving(
                place=place,
                param=param,
                value=text,
                argv=("sh", scripts[0], *args),
                script=resolver.script,
                scripts=scripts,
                args=args,
            )
    elif resolver.binary is not None and resolver.subcommand is not None:
        words = (resolver.binary, resolver.subcommand) if resolver.subcommand else (resolver.binary,)
        yield Resolving(place=place, param=param, value=text, argv=(*words, *args), args=args)


def _told(run: RunProcess, param: str, resolver: Resolver, text: str) -> Iterator[str]:
    """Which resolver would run first. It is not run here, so the value is shown as it came."""
    _check_resolver(run, resolver)
    if not _would_run(resolver, text):
        return
    ways: list[str] = []
    if resolver.script is not None:
        ways.append(f'the script "{resolver.script}" where scripts are allowed')
    if resolver.binary is not None and resolver.subcommand is not None:
        ways.append(f"{resolver.binary} {resolver.subcommand}".strip())
    if ways:
        yield f"{param}: first {', else '.join(ways)} would run, and what it prints would be the value"
