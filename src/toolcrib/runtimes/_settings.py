"""What an author's configuration means for one call: arguments, environment, interpreter, command, folder.

``prepare`` reads the settings that a format compiled into the invocation (``formats/_rye_chain.py`` says what
stands in them) and answers with values; the runtimes start things. It looks at files and starts nothing, so a
dry run may use it as well. A tool that has no chain has no such settings, and costs nothing here.

Two rules run through it. Templates (``${NAME}``, ``{name}``) are expanded in what the author wrote and never
in what the caller sent; and a template sees what the tool itself may see, so it reveals nothing.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import ChainMap
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from toolcrib import jsontext
from toolcrib.calls.commands import ELEMENT_BYTES_MAX
from toolcrib.catalog import files
from toolcrib.jsontext import JsonObject, JsonValue
from toolcrib.model import (
    CallFunction,
    CallHttp,
    CallPython,
    End,
    Ending,
    NotCallable,
    Permit,
    RunContainer,
    RunProcess,
    Tool,
    ToolCall,
)
from toolcrib.paths import is_below
from toolcrib.runtimes import Host, _cascade, _dependencies, environment, vaulted, withheld
from toolcrib.runtimes._cascade import Tier
from toolcrib.runtimes._dependencies import Loaded, file_of, object_of, texts_of
from toolcrib.runtimes._prepared import SHELLS, Prepared
from toolcrib.trust.policy import is_loader
from toolcrib.trust.secrets import Withheld

DOTENV_BYTES_MAX: Final = 64 << 10

_NOTHING: Final = b"{}"
_PASSES_MAX: Final = 3
_NAME: Final = "[A-Za-z_][A-Za-z0-9_]*"
_TEMPLATE: Final = re.compile(
    rf"\$\{{(?P<variable>{_NAME})(?::-(?P<default>[^}}]*))?\}}|\{{(?P<name>{_NAME})\}}"
)
_EXACT: Final = re.compile(rf"\{{({_NAME})\}}")
_EXACT_VARIABLE: Final = re.compile(rf"\$\{{({_NAME})\}}")
_PARAMS_JSON: Final = "{params_json}"
_CODE_OPTION: Final = re.compile(r"-[a-z]*c")
_DOTENV_LINE: Final = re.compile(rf"\s*(?:export\s+)?({_NAME})\s*=\s*(.*?)\s*")

# What the runtimes that come with this product do for a Python file where no item says otherwise.
_PYTHON_INTERPRETER: Final[JsonObject] = {
    "type": "local_binary",
    "binary": "python",
    "candidates": ["python3"],
    "search_paths": [".venv/bin"],
    "var": "RYE_PYTHON",
}


def prepare(tool: Tool, call: ToolCall, host: Host, permit: Permit, *, project: str) -> Prepared | Ending:
    """The same for a tool with a chain (``_prepared.prepare``)."""
    invocation = tool.invocation
    assert not isinstance(invocation, NotCallable | RunContainer | CallFunction)
    arguments = call.arguments or {}
    env = dict(invocation.env) if isinstance(invocation, RunProcess) else {}
    try:
        if invocation.settings == _NOTHING and not host.load_dotenv and _is_plain(tool, host, project):
            verified = _verified(tool, host, permit, project) if permit.loads else None
            return Prepared(arguments=arguments, env=env, cwd=project, verified=verified)
        settings = jsontext.loads_own(invocation.settings)
        return _Preparing(tool, host, permit, project, settings).prepared(arguments, env)
    except (_Stop, _dependencies.Unfit) as stop:
        return Ending(end=stop.end, reason=str(stop), hint=stop.hint)
    except Withheld as no:
        return withheld(no)
    except _cascade.Tampered as tampered:
        hint = "look at what changed, then sign it again"
        return Ending(end=End.DENIED, reason=str(tampered), hint=hint)
    except _cascade.Broken as broken:
        return Ending(
            end=End.UNAVAILABLE,
            reason=str(broken),
            hint="mend the file; a tool never runs with half of its configuration",
        )


class _Stop(Exception):
    def __init__(self, end: End, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.end = end
        self.hint = hint


def _verified(tool: Tool, host: Host, permit: Permit, project: str) -> Loaded:
    """The files that were verified for this call, or nothing runs."""
    found = _dependencies.loaded(tool, project, host.contents)
    # Attack: a file that is replaced between being verified and being loaded.
    if found is None or found.digest() != permit.loads:
        raise _Stop(
            End.DENIED,
            "the files that the tool loads changed between being checked and being started",
            "call it again once nobody is writing to them",
        )
    return found


def _is_plain(tool: Tool, host: Host, project: str) -> bool:
    """Whether nothing about a tool without settings depends on its surroundings; asked in every call."""
    invocation = tool.invocation
    if not isinstance(invocation, CallPython):
        return True
    if _is_trusted(host, project) or _PYTHON_INTERPRETER["var"] in host.variables:
        return False
    folder = os.path.dirname(file_of(tool))
    return not any(os.access(f"{folder}/{marker}", os.F_OK) for marker in _dependencies.PYTHON_MARKERS)


class _Preparing:
    """One preparation. The order: anchor, interpreter, environment, command, arguments."""

    def __init__(self, tool: Tool, host: Host, permit: Permit, project: str, settings: JsonObject) -> None:
        self.tool = tool
        self.host = host
        self.permit = permit
        self.project = project
        self.settings = settings
        self.config = object_of(settings.get("config"))
        self.env_config = object_of(settings.get("env_config"))
        self.anchor: JsonObject = {}
        self.scope: _dependencies.Scope | None = None
        self.interpreter_wish = object_of(self.env_config.get("interpreter"))
        if isinstance(tool.invocation, CallPython):
            self.interpreter_wish = self.interpreter_wish or _PYTHON_INTERPRETER
        self.own: list[str] = []
        self.notes: list[str] = []
        self.tool_path = file_of(tool)
        self.tool_dir = os.path.dirname(self.tool_path)
        self.places: dict[str, str] = {
            "tool_path": self.tool_path,
            "tool_dir": self.tool_dir,
            "tool_parent": os.path.dirname(self.tool_dir),
            "anchor_path": self.tool_dir,
            "project_path": project,
            "user_space": host.spaces.user,
            "system_space": self.system_space(),
        }
        self.seen: dict[str, str] = environment(host, tool, permit)
        """What the tool sees so far; templates see the same."""
        self.templates = _Templates(self.places, self.config, self.seen)
        self.secret: dict[str, str] = host.secrets.values(vaulted(host, tool, permit))
        """What comes out of the vault, and what the author made of it: for environment and headers."""
        # Attack: a template that puts a secret on a command line, where every process of the machine sees it.
        self.closed = _Templates(self.places, self.config, ChainMap(self.secret, self.seen))

    def prepared(self, arguments: JsonObject, env: Mapping[str, str]) -> Prepared:
        is_anchored = self.anchors()
        loaded = self.loaded()
        interpreter = self.interpreter()
        added = self.environment(env, interpreter, is_anchored=is_anchored)
        arguments = self.arguments(arguments)
        return Prepared(
            arguments=arguments,
            env=added,
            interpreter=interpreter,
            argv=self.argv(arguments, interpreter),
            cwd=self.cwd(is_anchored=is_anchored),
            http=self.http(),
            own=tuple(dict.fromkeys(path for path in self.own if not self.is_open(path))),
            dependencies=_dependencies.below(loaded),
            verified=loaded if self.permit.loads else None,
            notes=tuple(self.notes),
        )

    def system_space(self) -> str:
        spaces = self.host.spaces.systems
        mine = (space for space in spaces if is_below(self.tool_path, (space,)))
        return next(mine, spaces[0] if spaces else "")

    def is_open(self, path: str) -> bool:
        return is_below(path, (*self.permit.read, *self.permit.write))

    # -- the anchor -----------------------------------------------------------------------------------------

    def anchors(self) -> bool:
        """Whether the anchor applies; then its places are set."""
        found = _dependencies.anchor_of(self.tool, self.settings, self.project)
        if found is None:
            return False
        self.anchor = found.wish
        self.places["anchor_path"] = found.path
        self.own.append(found.path)
        if found.lib is not None:
            self.places["runtime_lib"] = found.lib
            self.own.append(found.lib)
        self.scope = _dependencies.scope_of(self.tool, self.settings, found)
        return True

    def anchor_paths(self, added: dict[str, str]) -> None:
        """The anchor's folders in variables that list folders, such as ``PYTHONPATH``."""
        grounds = (
            self.places["anchor_path"], self.project, self.host.spaces.user,
            *(os.path.join(space, ".ai") for space in self.host.spaces.systems),
            self.places.get("runtime_lib", ""),
        )  # fmt: skip
        for name, wish in object_of(self.anchor.get("env_paths")).items():
            there = [part for part in self.seen.get(name, "").split(os.pathsep) if part]
            before, after = (
                [
                    os.path.normpath(self.templates.text(part))
                    for part in texts_of(object_of(wish).get(end))
                    if self.templates.knows(part)  # what it does not know is a place that is not there
                ]
                for end in ("prepend", "append")
            )
            for path in (*before, *after):
                if not is_below(path, [*filter(None, grounds)]) or os.pathsep in path:
                    raise _Stop(
                        End.DENIED, f"anchor.env_paths.{name}: {path} lies outside the project and the anchor"
                    )
            listed = dict.fromkeys((*before, *(part for part in there if part not in after), *after))
            if listed:
                self.put(added, name, os.pathsep.join(listed))

    def cwd(self, *, is_anchored: bool) -> str:
        wish = self.anchor.get("cwd")
        if not is_anchored or not isinstance(wish, str) or not wish:
            return self.project
        folder = os.path.normpath(os.path.join(self.project, self.templates.text(wish)))
        if not os.path.isdir(folder):
            raise _Stop(End.UNAVAILABLE, f"anchor.cwd: there is no folder {folder}")
        return folder

    # -- what lies below the anchor -------------------------------------------------------------------------

    def loaded(self) -> Loaded | None:
        """The files besides its own that the tool may load: where some were verified, exactly those."""
        if self.permit.loads:
            return _verified(self.tool, self.host, self.permit, self.project)
        return _dependencies.gather(self.scope, self.host.contents) if self.scope is not None else None

    # -- the interpreter ------------------------------------------------------------------------------------

    def interpreter(self) -> str | None:
        """The existing path in its variable, then the search paths, then the fallback."""
        wish = self.interpreter_wish
        if not wish:
            return None
        variable = wish.get("var")
        given = self.host.variables.get(variable, "") if isinstance(variable, str) else ""
        if not _runs(given):
            given = self.searched(wish) or self.fallen_back(wish) or ""
        if not given:
            return None
        if isinstance(variable, str) and re.fullmatch(_NAME, variable):
            self.seen[variable] = given
        venv = os.path.dirname(os.path.dirname(given))
        self.own.append(venv if os.path.isfile(f"{venv}/pyvenv.cfg") else given)
        return given

    def searched(self, wish: JsonObject) -> str | None:
        kind = wish.get("type", "local_binary")
        names = list(filter(_is_bare, texts_of([wish.get("binary"), *texts_of(wish.get("candidates"))])))
        if kind in ("system_binary", "command"):
            if wish.get("resolve_cmd"):
                self.notes.append("env_config.interpreter.resolve_cmd is not run: PATH is searched instead")
            return next(filter(None, map(self.on_path, names)), None)
        paths = texts_of(wish.get("search_paths"))
        if kind == "venv_python":  # the first name of the same thing
            venv = wish.get("venv_path", ".venv")
            names, paths = names or ["python", "python3"], [f"{venv}/bin"]
        roots = [self.templates.text(root) for root in texts_of(wish.get("search_roots"))] or [self.project]
        folders = [
            os.path.normpath(os.path.join(self.project, root, path)) for root in roots for path in paths
        ]
        candidates = [os.path.join(folder, name) for folder in folders for name in names]
        return next(filter(self.may_interpret, candidates), None)

    def fallen_back(self, wish: JsonObject) -> str | None:
        fallback = wish.get("fallback")
        if not isinstance(fallback, str) or not fallback:
            if wish is _PYTHON_INTERPRETER:
                return None
        elif os.path.isabs(fallback) and self.may_interpret(fallback):
            return fallback
        elif _is_bare(fallback) and (found := self.on_path(fallback)):
            return found
        wanted = fallback or wish.get("binary") or "none is named"
        raise _Stop(
            End.UNAVAILABLE,
            f"Interpreter not found: {wanted}",
            "install it, or name its path in the variable that env_config.interpreter.var names",
        )

    def may_interpret(self, path: str) -> bool:
        if not _runs(path):
            return False
        # Attack: a cloned project that brings its own interpreter (.venv/bin/python), which would then run
        # for every tool, also for those of the user, before anybody has looked at it.
        real_project = os.path.realpath(self.project)
        inside = is_below(path, (self.project,)) or is_below(os.path.realpath(path), (real_project,))
        if inside and not _is_trusted(self.host, self.project):
            self.notes.append("the project's own interpreter is left aside: the project is not trusted")
            return False
        return not (inside and self.is_left_alone(path))

    def is_left_alone(self, path: str) -> bool:
        """Whether a file may be one that a tool put there. Attack: configuration, variables or an interpreter
        for other tools, or one so broken that they stop."""
        if not self.host.is_left_alone(path):
            return False
        self.notes.append(f"{path} is left aside: a tool may have made it (`toolcrib check` shows more)")
        return True

    def on_path(self, name: str) -> str | None:
        for folder in self.host.variables.get("PATH", "").split(os.pathsep):
            if os.path.isabs(folder) and _runs(candidate := os.path.join(folder, name)):
                return candidate
        return None

    # -- the environment ------------------------------------------------------------------------------------

    def environment(
        self, env: Mapping[str, str], interpreter: str | None, *, is_anchored: bool
    ) -> dict[str, str]:
        added: dict[str, str] = {}
        if self.host.load_dotenv:
            for name, value in self.dotenv().items():
                self.put(added, name, value)
        variable = self.interpreter_wish.get("var")
        if interpreter is not None and isinstance(variable, str) and re.fullmatch(_NAME, variable):
            self.put(added, variable, interpreter)
        configured = self.config.get("env")
        for source in (object_of(self.env_config.get("env")), object_of(configured), env):
            for name, value in source.items():
                unset = isinstance(value, str) and _EXACT_VARIABLE.fullmatch(value)
                if unset and unset[1] not in self.closed.seen:
                    continue
                text = _as_text(self.closed.value(value))
                if text == _as_text(self.templates.value(value)):
                    self.put(added, name, text)
                else:
                    self.put(added, name, text, into=self.secret)
        if is_anchored:
            self.anchor_paths(added)
        return added

    def put(
        self, added: dict[str, str], name: str, value: str, *, into: dict[str, str] | None = None
    ) -> None:
        if not name or "=" in name or "\0" in name + value:
            raise _Stop(End.UNAVAILABLE, f"{name!r} cannot be set: no variable has such a name or value")
        added[name] = (self.seen if into is None else into)[name] = value

    def told(self, where: str, value: JsonValue) -> JsonValue:
        """What the author wrote, expanded for a place that others may see."""
        told = self.templates.value(value)
        if self.secret and told != self.closed.value(value):
            raise _Stop(
                End.UNAVAILABLE,
                f"config.{where} names a secret of the vault, which goes into the environment alone",
                "let the tool read the variable, or hand it over in env",
            )
        return told

    def dotenv(self) -> dict[str, str]:
        """The project's ``.env``: plain assignments, nothing expanded; what the host has wins."""
        path = os.path.join(self.project, ".env")
        if not os.path.lexists(path) or self.is_left_alone(path):
            return {}
        content, unreadable = files.read(path, DOTENV_BYTES_MAX, within=os.path.realpath(self.project))
        if unreadable == files.LEADS_OUT:
            raise _Stop(End.DENIED, "Symlink escape: .env of the project")
        if content is None:
            raise _Stop(End.UNAVAILABLE, f".env of the project cannot be read: {unreadable}")
        found: dict[str, str] = {}
        for line in content.decode("utf-8", "replace").splitlines():
            match = _DOTENV_LINE.fullmatch(line)
            if match is None:
                continue
            name, value = match.groups()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            # Attack: a cloned project's .env that makes every program load its code.
            if is_loader(name):
                self.notes.append(f".env: {name} is left out: it makes programs load code")
            elif name not in self.closed.seen:
                found[name] = value
        return found

    # -- the command ----------------------------------------------------------------------------------------

    def argv(self, arguments: JsonObject, interpreter: str | None) -> tuple[str, ...] | None:
        invocation = self.tool.invocation
        if not isinstance(invocation, RunProcess):
            return None
        if self.settings.get("expand") is not True:
            is_script = invocation.fixed[:1] == (self.tool.origin.path,)
            return (interpreter, *invocation.fixed) if interpreter is not None and is_script else None
        written = (invocation.program, *invocation.fixed)
        is_shell = os.path.basename(self.templates.text(written[0])) in SHELLS
        argv: list[str] = []
        for number, part in enumerate(written):
            if is_shell and number and _CODE_OPTION.fullmatch(written[number - 1]):
                argv.append(self.templates.shell(part))
            elif part == _PARAMS_JSON and number:
                argv.append(jsontext.compact(arguments).decode("utf-8"))
            else:
                argv.append(_as_text(self.told("command", part)))
        for part in argv:
            if "\0" in part or len(part.encode("utf-8", "replace")) > ELEMENT_BYTES_MAX:
                raise _Stop(
                    End.REFUSED, f"exec failed: argument too large (limit {ELEMENT_BYTES_MAX} bytes, no NUL)"
                )
        if not self.templates.knows(written[0]):
            raise _Stop(
                End.UNAVAILABLE,
                f"config.command: nothing is known for {written[0]}",
                "name the variable in env, or choose the interpreter by env_config",
            )
        argv[0] = self.program(argv[0])
        return tuple(argv)

    def http(self) -> CallHttp | None:
        """The author's URL and headers. What a template names and nobody knows is not sent as it stands."""
        invocation = self.tool.invocation
        if not isinstance(invocation, CallHttp):
            return None
        written = [("url", invocation.url)]
        written += [(f"headers.{name}", value) for name, value in invocation.headers]
        for where, text in written:
            unknown = self.closed.unknown(text)
            if unknown is not None:
                raise _Stop(
                    End.UNAVAILABLE,
                    f"config.{where}: nothing is known for {unknown}",
                    "set the variable where the host runs, or add the name to config",
                )
        headers = tuple((name, self.closed.text(value)) for name, value in invocation.headers)
        return replace(invocation, url=self.closed.text(invocation.url), headers=headers)

    def program(self, name: str) -> str:
        if "/" not in name or os.path.isabs(name):
            return name
        # Attack: a command that climbs out of the project by dots.
        path = os.path.normpath(os.path.join(self.project, name))
        if not is_below(path, (self.project,)):
            raise _Stop(End.DENIED, f"config.command: {name} leaves the project")
        return path

    # -- the arguments --------------------------------------------------------------------------------------

    def arguments(self, given: JsonObject) -> JsonObject:
        arguments = dict(given)
        fixed = self.config.get("fixed_params")
        if isinstance(fixed, dict):
            arguments |= self.told("fixed_params", fixed)
        actions = self.settings.get("actions")
        if isinstance(actions, dict):
            action = arguments.get("action")
            mine = actions.get(action, ()) if isinstance(action, str) else ()
            foreign = {name for names in actions.values() for name in names if name not in mine}
            for name in sorted(foreign & arguments.keys()):
                del arguments[name]
                self.notes.append(f"{name} is left out: it belongs to another action")
        key = self.config.get("params_key")
        if isinstance(key, str) and key:
            arguments = {key: arguments}
        requests = self.settings.get("config_resolve")
        if requests:
            arguments["resolved_config"] = _cascade.resolve(
                requests, self.tiers(), self.permit.hidden, self.host.vet_config, self.is_left_alone
            )
        return arguments

    def tiers(self) -> list[Tier]:
        spaces = self.host.spaces
        named = [
            *([("user", spaces.user)] if spaces.user else []),
            *(("system", at) for at in spaces.systems),
        ]
        return [
            Tier(
                name="project",
                folder=os.path.join(self.project, ".ai", "config"),
                within=os.path.realpath(self.project),
            ),
            *(Tier(name=name, folder=os.path.join(space, ".ai", "config")) for name, space in named),
        ]


# -- templates ----------------------------------------------------------------------------------------------


class _Templates:
    """Expands what the author wrote.

    Places and variables are put in as they are and never looked at again; members of the author's ``config``
    may hold templates themselves, a few levels deep. What is not known stays as it is.
    """

    def __init__(self, places: Mapping[str, str], config: JsonObject, seen: Mapping[str, str]) -> None:
        self._places = places
        self._config = config
        self.seen = seen

    def value(self, value: JsonValue, passes: int = _PASSES_MAX) -> JsonValue:
        """Every text in a value; one that is exactly ``{x}`` becomes what x is, with its type."""
        if isinstance(value, dict):
            return {key: self.value(member, passes) for key, member in value.items()}
        if isinstance(value, list):
            return [self.value(item, passes) for item in value]
        if not isinstance(value, str):
            return value
        exact = _EXACT.fullmatch(value)
        if exact is not None:
            return self._named(exact[1], value, passes)
        return self.text(value, passes)

    def text(self, text: str, passes: int = _PASSES_MAX) -> str:
        return _TEMPLATE.sub(lambda match: self._put_in(match, passes), text) if "{" in text else text

    def knows(self, text: str) -> bool:
        """Whether nothing in a text stays a template."""
        return self.unknown(text) is None

    def unknown(self, text: str) -> str | None:
        """The first template in a text that stays one."""
        for match in _TEMPLATE.finditer(text):
            name = match["name"]
            if name is not None:
                known = name in self._places or name in self._config
            else:
                known = match["variable"] in self.seen or match["default"] is not None
            if not known:
                return match.group()
        return None

    def shell(self, code: str) -> str:
        """Code for a shell: variables are its own business, and what is put in is quoted.

        Attack: a project folder whose name ends the word it is put into and goes on as code.
        """
        exact = _EXACT.fullmatch(code)
        if exact is not None and exact[1] in self._config and exact[1] not in self._places:
            code = _as_text(self._config[exact[1]])

        def quoted(match: re.Match[str]) -> str:
            if match["name"] is None:
                return match.group()
            found = self._named(match["name"], match.group(), _PASSES_MAX)
            return match.group() if found == match.group() else shlex.quote(_as_text(found))

        return _TEMPLATE.sub(quoted, code)

    def _put_in(self, match: re.Match[str], passes: int) -> str:
        if match["name"] is not None:
            return _as_text(self._named(match["name"], match.group(), passes))
        found = self.seen.get(match["variable"])
        if match["default"] is not None:
            return found or match["default"]
        return match.group() if found is None else found

    def _named(self, name: str, otherwise: str, passes: int) -> JsonValue:
        if name in self._places:
            return self._places[name]
        if name not in self._config or not passes:
            return otherwise
        return self.value(self._config[name], passes - 1)


def _as_text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, dict, list)):
        return "" if value is None else jsontext.compact(value).decode("utf-8")
    return str(value)


# -- odds and ends ------------------------------------------------------------------------------------------


def _is_trusted(host: Host, project: str) -> bool:
    trusted = host.trusted_projects
    return bool(trusted) and (project in trusted or os.path.realpath(project) in trusted)


def _is_bare(name: str) -> bool:
    return bool(name) and "/" not in name


def _runs(path: str) -> bool:
    with suppress(ValueError):
        return os.path.isabs(path) and os.path.isfile(path) and os.access(path, os.X_OK)
    return False
