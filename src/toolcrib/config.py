"""One frozen ``Config`` from file, environment and flags. The sole reader of ``os.environ``.

A cloned project must not trust itself: a ``toolcrib.toml`` that was found by searching may only narrow.
Keys of it that would widen anything are reported as ``config.untrusted`` and ignored; a file named by the
user, the user's own configuration, and a file that the user reviewed (``store/trusted.py``) count as trusted.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct, field
from msgspec.structs import replace

from toolcrib import former
from toolcrib.catalog import files, searched
from toolcrib.catalog.searched import LeftOut
from toolcrib.catalog.sources import Source
from toolcrib.errors import ConfigError, SourceError, StoreError, UsageError, nearest
from toolcrib.jsontext import Pointer
from toolcrib.model import (
    BASE_ENV,
    FILE_FORMATS,
    FOUND_FORMATS,
    LOCK_NAME,
    LOCKS,
    TIMEOUT_S_MAX,
    WRITE,
    Effect,
    Grant,
    Level,
    Limits,
    OpenApiOptions,
    Problem,
    Profile,
    Rules,
    Severity,
    StatedEffect,
)
from toolcrib.paths import NOTED, TEMPORARY_FOLDER, is_below
from toolcrib.records import Discreet
from toolcrib.store.keep import STORE_NAME, Keep, lock_memory
from toolcrib.trust.secrets import PASSPHRASE

if TYPE_CHECKING:
    from toolcrib.catalog.appeared import Appearance

FILE_NAME: Final = "toolcrib.toml"


class Environment(Discreet, frozen=True, kw_only=True):
    """The few things we take from the process environment, read once."""

    HIDDEN: ClassVar = (
        "variables",
        "passphrase",
    )

    home: str
    path: str
    state: str
    """The folder for our own state."""
    user_config: str
    user_space: str
    """The root of rye's user space."""
    colours: bool = True
    """Whether a terminal may be coloured."""
    user: str = ""
    """Who is asking, for records."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The snapshot from which tools get what they are granted. Values never reach a message or a record."""
    temporary_folder: str = TEMPORARY_FOLDER
    passphrase: str = ""
    """Of the vault, where it has one. Attack: a tool that is granted all variables and opens the vault: it is
    none of them."""

    @staticmethod
    def read(environ: Mapping[str, str] | None = None, *, uid: int | None = None) -> Environment:
        """Read it once. Raises ConfigError where a variable has its former name."""
        values = os.environ if environ is None else environ
        formerly = former.name_of(PASSPHRASE)
        if values.get(formerly) and not values.get(PASSPHRASE):
            # A new vault would get no passphrase.
            raise ConfigError(f"the variable {formerly} is called {PASSPHRASE} now", f"set {PASSPHRASE}")
        uid = os.getuid() if uid is None else uid
        home = _base_folder(values, "HOME") or _home_of(uid)
        if sys.platform == "darwin":
            state_home = config_home = os.path.join(home, "Library", "Application Support")
        else:
            state_home = _base_folder(values, "XDG_STATE_HOME") or os.path.join(home, ".local", "state")
            config_home = _base_folder(values, "XDG_CONFIG_HOME") or os.path.join(home, ".config")
        return Environment(
            home=home,
            path=values.get("PATH", os.defpath),
            state=os.path.join(state_home, "toolcrib"),
            user_config=os.path.join(config_home, "toolcrib", "config.toml"),
            user_space=values.get("USER_SPACE") or home,
            colours=not values.get("NO_COLOR") and values.get("TERM") != "dumb",
            user=values.get("USER") or values.get("LOGNAME") or f"uid {uid}",
            variables={name: value for name, value in values.items() if name not in (PASSPHRASE, formerly)},
            temporary_folder=_temporary_folder(values),
            passphrase=values.get(PASSPHRASE, ""),
        )

    def probe_environment(self) -> dict[str, str]:
        """What a program sees while it is asked for its schema: no credentials."""
        return {"PATH": self.path, "LANG": "C.UTF-8"}

    def git_settings(self) -> tuple[str, ...]:
        """Where git looks for the user's own settings. Not where it keeps credentials."""
        folder = os.path.join(
            _base_folder(self.variables, "XDG_CONFIG_HOME") or os.path.join(self.home, ".config"), "git"
        )
        inside = (os.path.join(folder, name) for name in ("config", "ignore", "attributes"))
        return (os.path.join(self.home, ".gitconfig"), *inside)


def searchable(environment: Environment, config: Config) -> tuple[Environment, tuple[LeftOut, ...]]:
    """The environment without folders in which a tool could put programs, and what was left out."""
    named = (source.path for source in config.sources if os.path.isabs(source.path))
    roots = tuple(dict.fromkeys(map(os.path.realpath, (current_folder(), *named))))
    path, left_out = searched.cleaned("PATH", environment.path, roots, config.state)
    variables = dict(environment.variables)
    for name in variables.keys() & {"PATH", *searched.MODULE_PATHS}:
        value, more = searched.cleaned(name, variables[name], roots, config.state)
        variables[name] = value
        left_out += more if name != "PATH" else ()
    return replace(environment, path=path, variables=variables), tuple(left_out)


def _base_folder(values: Mapping[str, str], name: str) -> str | None:
    """The XDG rule, also for HOME: a relative path counts as not set."""
    path = values.get(name, "")
    return path if os.path.isabs(path) else None


def _home_of(uid: int) -> str:
    """The home that the system knows for a user; the root folder, as in containers, where it knows none.

    Attack: a clone with a folder named `~`, or `.config`, whose configuration counts as the user's own where
    there is no home to look in, or a relative one.
    """
    with suppress(KeyError):
        home = pwd.getpwuid(uid).pw_dir
        if os.path.isabs(home):
            return home
    return "/"


def _temporary_folder(values: Mapping[str, str]) -> str:
    """The first folder in which we may make others, of those that are named and those that systems have."""
    named = (values.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    for folder in (*named, TEMPORARY_FOLDER, "/var/tmp", "/usr/tmp"):
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            with suppress(OSError):  # a relative one, where the folder that we are in was removed
                return os.path.abspath(folder)
    return TEMPORARY_FOLDER


def current_folder() -> str:
    """Where we are. Raises SourceError where that folder was removed under us."""
    try:
        return os.getcwd()
    except OSError as error:
        raise SourceError(
            f"the current folder: {files.reason(error)}", "go to a folder that exists"
        ) from None


def own_python(told: str | None, installation: str) -> str:
    """The interpreter for Python tools: our own, by ``sys.executable`` and ``sys.exec_prefix``.

    Python does not know its path where it was started without a PATH, and names another program where it is
    part of one (a web server): then it is the one of our version in the same installation.
    """
    if told and os.path.basename(told).startswith("python"):
        return told
    usual = os.path.join(installation, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    return told if told and not os.access(usual, os.X_OK) else usual


def own_code() -> tuple[str, ...]:
    """Where our own code is, and that of our interpreter's environment, if it is one of its own."""
    package = os.path.dirname(os.path.realpath(__file__))
    is_own = sys.prefix != sys.base_prefix
    return (package, os.path.realpath(sys.prefix)) if is_own else (package,)


class Serving(Struct, frozen=True, kw_only=True):
    """How ``serve`` listens, and what it takes from whoever connects."""

    host: str = "127.0.0.1"
    port: int = 8321
    hosts: tuple[str, ...] = ()
    """Other names under which we are reached, by a proxy for example."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may call us, besides our own."""
    rate_per_minute: int = 6000
    """Requests of one caller."""
    body_bytes_max: int = 4 << 20
    header_bytes_max: int = 32 << 10
    """The request line and all headers of a request together."""
    connections_max: int = 1024
    header_timeout_s: float = 10.0
    """From the first byte of a request, or from connecting, to the end of its headers."""
    body_timeout_s: float = 60.0
    """From the end of the headers to the end of the body."""
    keep_alive_s: float = 75.0
    """How long a connection may rest between requests."""
    write_timeout_s: float = 60.0
    """How long somebody may not read what was sent, before the connection is given up."""
    approval_wait_s: float = 300.0
    """The longest that a caller may have its call wait for a person."""
    drain_s: float = 10.0
    """How long calls may go on after a signal to stop."""
    watch: bool = True
    """Whether changed files are read again by themselves."""
    sign_tool: bool = False
    """Whether rye's own tool for signing may be called from outside."""


class ProxySettings(Struct, frozen=True, kw_only=True):
    """A proxy for requests to named hosts."""

    host: str
    port: int
    hosts: tuple[str, ...]
    """Names, or ``*.`` and a domain whose names are meant."""
    secret: str = ""
    """The name of the secret that holds ``USER:PASSWORD``; empty: the proxy wants none."""


class HttpSettings(Struct, frozen=True, kw_only=True):
    """How requests of HTTP tools, MCP servers behind URLs and OpenAPI documents leave this machine."""

    proxy: ProxySettings | None = None
    ca_file: str = ""
    """Certificates of authorities that are trusted besides the system's; empty: none."""


class Config(Discreet, frozen=True, kw_only=True):
    """Everything that can be set, in one value."""

    HIDDEN: ClassVar = ("file_text",)

    sources: tuple[Source, ...] = ()
    manifest_strict: bool = False
    context_mode: str = "full"
    allow_scripts: bool = False
    skills_disabled: tuple[str, ...] = ()
    extra_dirs: tuple[str, ...] = ()
    keyword_match: str = "word"
    timeout_s: float = 30.0
    grants: tuple[Grant, ...] = ()
    grant_files: tuple[str, ...] = ()
    """Where each of them stands."""
    effects: tuple[StatedEffect, ...] = ()
    """What ``[tools]`` states about tools whose declarations cannot."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables of tools, and the secrets of the vault that they stand for."""
    policy: tuple[Mapping[str, Any], ...] = ()
    """The rules as they stand in the files, the user's own first."""
    policy_places: tuple[str, ...] = ()
    """Where each of them stands: the file, the line and the number."""
    budgets: tuple[Mapping[str, Any], ...] = ()
    """The same for budgets."""
    budget_places: tuple[str, ...] = ()
    undeclared: Profile | None = None
    """For tools that state no needs; None: open for sources that a person or a trusted file named, else
    project: for those of a file that was found, and for the current folder."""
    require: Level = Level.PORTABLE
    unsigned: str = "refuse"
    retention_days: int = 90
    day_file: bool = True
    redact: tuple[str, ...] = ()
    """Patterns (regular expressions, else literal texts) that records never show."""
    dev_mode: bool = False
    load_dotenv: bool = False
    container_engine: str = ""
    """The program that runs containers; empty: none may be run."""
    limits: Limits = Limits()
    calls_per_tool: int = 32
    """How many calls of one tool run at once; more wait."""
    zygotes: int = 8
    result_bytes: int = 256 << 10
    """A longer result text is kept aside and cut for the model."""
    http: HttpSettings = HttpSettings()
    serve: Serving = Serving()
    state: str | None = None
    """The folder for state; None keeps none."""
    file: str | None = None
    file_text: str = ""
    """The file as it was read: later its lines may be others."""
    trusted: bool = False
    problems: tuple[Problem, ...] = ()

    def rules(self, *, context_checks: Sequence[str] = (), executors: Sequence[str] = ()) -> Rules:
        """What the formats are told."""
        return Rules(
            manifest_strict=self.manifest_strict,
            skills_disabled=self.skills_disabled,
            read_on_demand=self.context_mode == "read_on_demand",
            context_checks=tuple(sorted(context_checks)),
            executors=tuple(sorted(executors)),
            windows=sys.platform == "win32",
        )


def lock_folder(config: Config, environment: Environment) -> str:
    """Where the lock lies: beside the configuration of the project, else in the current folder."""
    here = current_folder()
    if config.file is None or config.file == environment.user_config:
        return here
    folder = os.path.dirname(os.path.abspath(config.file))
    if not config.trusted and config.state is not None:
        # Attack: a configuration that is added above a folder whose tools were locked, so that another lock,
        # or none, speaks about them. The nearest folder that was locked on this machine comes first.
        for at in above(here):
            if at == folder:
                break
            if os.path.isdir(lock_memory(config.state, os.path.join(at, LOCK_NAME))):
                return at
    return folder


def above(folder: str) -> Iterator[str]:
    """A folder and all that it lies in."""
    while True:
        yield folder
        outer = os.path.dirname(folder)
        if outer == folder:
            return
        folder = outer


# -- what may stand in a file -------------------------------------------------------------------------------


class _Key(Struct, frozen=True):
    kind: type | tuple[type, ...]
    choices: tuple[str, ...] = ()
    widens: bool | str = False
    """True: only a trusted file may set it. A choice (``choices`` go from wide to narrow): only a trusted
    file may go before it, or before what already holds."""
    harmless: tuple[Any, ...] = ()
    """Values that widen nothing, so that any file may set them."""
    items: _Key | None = None
    """What the items of a list must be."""


_TEXT: Final = _Key(str)
_PERMISSION: Final = _Key(bool, widens=True, harmless=(False,))

_SECTIONS: Final[dict[str, dict[str, _Key]]] = {
    "manifest": {"strict": _Key(bool)},
    "skills": {
        "context_mode": _Key(str, choices=("full", "read_on_demand")),
        "allow_scripts": _PERMISSION,
        "disabled": _Key(list, items=_TEXT),
        "extra_dirs": _Key(list, items=_TEXT, widens=True, harmless=([],)),
    },
    "selection": {"keyword_match": _Key(str, choices=("word", "substring"))},
    "timeouts": {"default_s": _Key((int, float))},
    "trust": {"unsigned": _Key(str, choices=("warn", "refuse"), widens="refuse")},
    "audit": {
        "retention_days": _Key(int, widens=True),
        "day_file": _Key(bool, widens=True),
        "redact": _Key(list, items=_TEXT),
    },
    "containers": {"engine": _Key(str, widens=True, harmless=("",))},
    "rye": {"dev_mode": _PERMISSION, "load_dotenv": _PERMISSION},
    "isolation": {
        "undeclared": _Key(str, choices=("open", "project", "closed"), widens="project"),
        "require": _Key(str, choices=("portable", "restricted", "supervised"), widens="portable"),
    },
    "limits": {
        "calls_per_tool": _Key(int, widens=True),
        "memory_bytes": _Key(int, widens=True),
        "processes": _Key(int, widens=True),
        "result_bytes": _Key(int, widens=True),
        "scratch_bytes": _Key(int, widens=True),
        "zygotes": _Key(int, widens=True),
    },
    "http": {
        # Attack: a clone whose author's proxy reads our requests, or whose author's authority vouches for it.
        "proxy": _Key(dict, widens=True),
        "ca_file": _Key(str, widens=True, harmless=("",)),
    },
    "serve": {
        # Attack: a clone that opens a port to the network, or our port to a web page of its author's.
        "host": _Key(str, widens=True, harmless=("127.0.0.1", "::1", "localhost")),
        "port": _Key(int, widens=True),
        "hosts": _Key(list, items=_TEXT, widens=True, harmless=([],)),
        "origins": _Key(list, items=_TEXT, widens=True, harmless=([],)),
        "rate_per_minute": _Key(int, widens=True),
        "body_bytes_max": _Key(int, widens=True),
        "header_bytes_max": _Key(int, widens=True),
        "connections_max": _Key(int, widens=True),
        "header_timeout_s": _Key((int, float), widens=True),
        "body_timeout_s": _Key((int, float), widens=True),
        "keep_alive_s": _Key((int, float), widens=True),
        "write_timeout_s": _Key((int, float), widens=True),
        "approval_wait_s": _Key((int, float), widens=True),
        "drain_s": _Key((int, float), widens=True),
        "watch": _Key(bool),
        "sign_tool": _PERMISSION,
    },
}
_SERVE_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "port": (0, 65_535),
    "rate_per_minute": (0, 10_000_000),
    "body_bytes_max": (1 << 10, 256 << 20),
    "header_bytes_max": (1 << 10, 1 << 20),
    "connections_max": (1, 100_000),
    "header_timeout_s": (0.1, 3600),
    "body_timeout_s": (0.1, 3600),
    "keep_alive_s": (0, 3600),
    "write_timeout_s": (0.1, 3600),
    "approval_wait_s": (0, TIMEOUT_S_MAX),
    "drain_s": (0, 3600),
}
_SOURCE_KEYS: Final = {
    "path": _TEXT,
    "format": _Key(str, choices=FOUND_FORMATS),
    "trusted": _PERMISSION,
    "handlers": _Key(str, widens=True),
    "name": _TEXT,
    "mcp": _Key((str, list), items=_TEXT, widens=True),
    "env": _Key(list, items=_TEXT, widens=True),
    "headers": _Key(dict, widens=True),
    "timeout": _Key((int, float), widens=True),
    "cwd": _Key(str, widens=True),
    "openapi": _Key(str, widens=True),
    "tags": _Key(list, items=_TEXT),
    "paths": _Key(list, items=_TEXT),
    "secret": _Key(str, widens=True),
}
_PROXY_KEYS: Final = {"url": _TEXT, "hosts": _Key(list, items=_TEXT), "secret": _TEXT}
_PROXY_URL: Final = re.compile(r"http://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?/?")
_PROXY_HOST: Final = re.compile(r"(?:\*\.)?(?:[a-z0-9_-]+\.)*(?!0x[0-9a-f]*$)[a-z0-9_-]*[a-z_-][a-z0-9_-]*")
_POLICY_KEYS: Final = {
    "match": _Key(dict),
    "decision": _Key(str, choices=("allow", "ask", "deny")),
    "because": _TEXT,
    "examples": _Key(list, items=_Key(dict)),
}
_BUDGET_KEYS: Final = {
    "match": _Key(dict),
    "calls": _Key(int),
    "cost": _Key((int, float)),
    "currency": _TEXT,
    "unknown_cost": _Key((int, float, dict)),
    "within": _TEXT,
    "per": _Key(str, choices=("together", "tool", "caller", "both")),
    "because": _TEXT,
}
_GRANT_KEYS: Final = {"needs": _Key(list, items=_TEXT), "env": _Key(list, items=_TEXT)}
_TOOL_KEYS: Final = {"effect": _Key(str, choices=tuple(Effect))}
_TOP: Final = (*_SECTIONS, "source", "grants", "tools", "secrets", "policy", "budget")


# -- reading ------------------------------------------------------------------------------------------------


def find_file(folder: str) -> str | None:
    """The nearest ``toolcrib.toml`` in a folder or above it that is ours to follow.

    Attack: on a shared machine anyone can put a file into a folder above ours (`/tmp`), and its sources would
    stand in the place of our own tools.
    """
    paths = (os.path.join(each, FILE_NAME) for each in above(folder))
    return next((path for path in paths if os.path.isfile(path) and _is_ours(path)), None)


def _is_ours(path: str) -> bool:
    status = os.stat(path)
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o002


def resolve(
    environment: Environment,
    *,
    cwd: str,
    file: str | None = None,
    sources: Sequence[str] = (),
    state: str | None = None,
) -> Config:
    """The configuration of one run: the user's own, then the file named or found, then the flags."""
    config = Config(state=os.path.join(cwd, state) if state is not None else environment.state)
    if state is None:
        refuse_former_state(environment.state)
    if os.path.isfile(environment.user_config):
        config = _merged(config, environment.user_config, trusted=True)
    else:
        _refuse_former_folder(environment.user_config)
    named = os.path.join(cwd, file) if file is not None else None
    if named is not None:
        _refuse_former_named(named)
    if named is not None and not os.path.lexists(named):
        raise SourceError(
            f"{file}: no such file", "name a configuration file that exists, or leave out --config"
        )
    if named is not None:
        # Attack: a tool rewrites a file that no host uses while it runs, and that a person names later.
        _refuse_planted(config.state, named, _content(named))
        config = _merged(config, named, trusted=True)
    else:
        found = find_file(cwd)
        config = replace(config, problems=(*config.problems, *_former_above(cwd, found, config.state)))
        if found is not None:
            config = _found(config, found)
    if sources:
        config = replace(config, sources=tuple(named_source(text, cwd) for text in sources))
    elif not config.sources:
        config = replace(config, sources=(Source(path=cwd, found=True),))
    return config


def named_source(text: str, cwd: str) -> Source:
    """A source from the command line: ``[FORMAT=]PATH``. A person named it, so it may be loaded."""
    name, equals, path = text.partition("=")
    if not equals or "/" in name or name not in FILE_FORMATS:
        if equals and name.isidentifier() and not os.path.exists(os.path.join(cwd, text)):
            close = nearest(name, FILE_FORMATS)
            raise UsageError(
                f"unknown format {name!r} in {text!r}",
                f"did you mean {close[0]}={path}?" if close else f"formats are {', '.join(FILE_FORMATS)}",
            )
        name, path = "", text
    if not path:
        raise UsageError("a source needs a path", "write --from PATH or --from FORMAT=PATH")
    return Source(
        path=os.path.normpath(os.path.join(cwd, path)),
        format=name or None,
        probe=name == "executable",
        named=True,
        root=os.path.dirname(os.path.normpath(os.path.join(cwd, path))),
        starts=True,
    )


def read_file(path: str, *, trusted: bool) -> Config:
    """The configuration of one file on its own."""
    return _merged(Config(), path, trusted=trusted)


def _merged(base: Config, path: str, *, trusted: bool) -> Config:
    content = _content(path)
    table = _table(path, content)
    reading = _Reading(base, path, trusted, content.decode("utf-8"))
    return reading.told(reading.read(table), _FOUND)


def _content(path: str) -> bytes:
    content, unreadable = files.read(path)
    if content is None:
        raise ConfigError(f"{path}: {unreadable}", "make it readable, or name another with --config")
    return content


def _table(path: str, content: bytes) -> dict[str, Any]:
    try:
        # By name: many runs have no file, and reading TOML is slow to import.
        table: dict[str, Any] = import_module("toolcrib.formats._toml").read(content.decode("utf-8"))
    except ValueError as error:
        line = getattr(error, "line", None)
        what = f"{path}: not valid TOML: {error}"
        raise ConfigError(what, "mend the line it names", file=path, line=line) from None
    if (key := former.key_in(table)) is not None:
        # A rule that denies it would deny nothing.
        why = f"{path}: {key[:100]!r} is a former key, and names no tool any more"
        raise ConfigError(why, f"write {former.NAME}: instead of {former.FORMER_NAME}:", file=path)
    return table


def _found(base: Config, path: str) -> Config:
    """A file that nobody named: it counts in full where the user reviewed these very bytes, else it narrows.

    Attack: a file that is swapped between the look at its digest and its reading. It is read once.
    """
    content = _content(path)
    _refuse_planted(base.state, path, content)
    table, text = _table(path, content), content.decode("utf-8")
    reading = _Reading(base, path, trusted=False, text=text)
    narrow = reading.read(table)
    if not reading.widening:
        return narrow
    why = _why_untrusted(base.state, path, content)
    if why is None:
        return _Reading(base, path, trusted=True, text=text).read(table)
    return reading.told(narrow, why)


def _refuse_planted(state: str | None, path: str, content: bytes) -> None:
    """Attack: a tool that makes a configuration where there was none, so that other tools are listed, or the
    user's own are not. Neither to follow it nor to leave it out is safe."""
    record = _planted(state, path, content)
    if record is not None:
        words = import_module("toolcrib.catalog.unconfirmed").words_of(record)
        raise ConfigError(*words, file=path)


def _planted(state: str | None, path: str, content: bytes) -> Appearance | None:
    """Return the record of a file that appeared while a tool could write there, and waits to be confirmed."""
    if state is None or not any(os.path.lexists(os.path.join(state, name)) for name in NOTED):
        return None
    # By name: where no tool could ever write, nothing can have appeared.
    found: Appearance | None = import_module("toolcrib.catalog.writes").bars_configuration(
        state, path, content
    )
    return found


# -- former names -------------------------------------------------------------------------------------------


def refuse_former(folder: str, name: str, state: str | None) -> tuple[Problem, ...]:
    """Raise ConfigError if a file of a folder still has its former name, and there is none of the new one.

    Return a problem instead if it appeared while a tool could write there.
    """
    place, path = os.path.join(folder, former.name_of(name)), os.path.join(folder, name)
    if not os.path.lexists(place) or os.path.lexists(path):
        return ()
    record = _planted(state, place, files.read(place)[0] or b"")
    if record is not None:
        # Attack: a tool that makes such a file, so that nothing can be called any more. There was none before
        # it ran, so without the file everything is as it was then.
        return (import_module("toolcrib.catalog.unconfirmed").problem_of(record, place),)
    then = "then look at your tools, and run `toolcrib lock`" if name == LOCK_NAME else ""
    raise ConfigError(*former.moved(place, path, then), file=place)


def _former_above(cwd: str, found: str | None, state: str | None) -> Iterator[Problem]:
    """Look for the former name where ``find_file`` looked, up to the file that it found."""
    for folder in above(cwd):
        if found is not None and folder == os.path.dirname(found):
            return
        place = os.path.join(folder, former.name_of(FILE_NAME))
        if os.path.isfile(place) and _is_ours(place):
            yield from refuse_former(folder, FILE_NAME, state)


def _refuse_former_named(path: str) -> None:
    """Raise ConfigError if a person names a file by its former name, or by the new one too early."""
    folder, name = os.path.split(path)
    if name == former.name_of(FILE_NAME) and os.path.lexists(path):
        raise ConfigError(*former.moved(path, os.path.join(folder, FILE_NAME)), file=path)
    if name == FILE_NAME:
        refuse_former(folder, FILE_NAME, None)


def _refuse_former_folder(path: str) -> None:
    """Raise ConfigError if the user's own file is in a folder of the former name."""
    folder, name = os.path.split(path)
    place = os.path.join(os.path.dirname(folder), former.name_of(os.path.basename(folder)), name)
    if place != path and os.path.isfile(place):
        # A folder that is there already would get the other one put into it.
        pair = (place, path) if os.path.lexists(folder) else (os.path.dirname(place), folder)
        raise ConfigError(*former.moved(*pair), file=place)


def refuse_former_state(state: str) -> None:
    """Raise ConfigError if all that was kept is in a folder of the former name.

    Else what was switched off, locked, spent and trusted would be forgotten.
    """
    place = os.path.join(os.path.dirname(state), former.name_of(os.path.basename(state)))
    if place == state or _keeps_some(state) or not _keeps_some(place):
        return
    if os.path.lexists(state):
        folders = f"{shlex.quote(place)}/* {shlex.quote(state)}/"
        raise ConfigError(former.moved(place, state)[0], f"mv {folders}", file=place)
    raise ConfigError(*former.moved(place, state), file=place)


def _keeps_some(state: str) -> bool:
    return any(os.path.lexists(os.path.join(state, name)) for name in (STORE_NAME, LOCKS, "journal"))


def _why_untrusted(state: str | None, path: str, content: bytes) -> str | None:
    """Why bytes that were read are not what the user reviewed; None where they are. SQLite is imported only
    where there is a store: a host that keeps nothing trusts nothing."""
    store_path = os.path.join(state, STORE_NAME) if state is not None else ""
    if not os.path.lexists(store_path):
        return _FOUND
    if files.is_open_to_others(os.path.dirname(store_path)):
        # Attack: another user of the machine writes down for us what we trust.
        return f"others may write {state}, so nothing in it is believed"
    keep = Keep(store_path)
    try:
        trusted = import_module("toolcrib.store.trusted")
        standing = trusted.standing(keep.opened(), path, trusted.digest_of(content))
    except StoreError as error:
        return f"what was trusted cannot be read: {error.message}"
    finally:
        keep.close()
    return {trusted.Standing.TRUSTED: None, trusted.Standing.CHANGED: _CHANGED}.get(standing, _FOUND)


class Reviewed(Discreet, frozen=True, kw_only=True):
    """A project's file as a person is asked about it: its bytes, and what it would widen."""

    HIDDEN: ClassVar = ("content",)

    path: str
    content: bytes
    widening: tuple[tuple[str, str], ...] = ()
    """Each key that counts only where the file is trusted, and what it says."""


def review(environment: Environment, path: str) -> Reviewed:
    """What a project's file would widen, over the user's own configuration. Raises ConfigError."""
    base = Config()
    if os.path.isfile(environment.user_config):
        base = _merged(base, environment.user_config, trusted=True)
    content = _content(path)
    table, text = _table(path, content), content.decode("utf-8")
    reading = _Reading(base, path, trusted=False, text=text)
    reading.read(table)
    _Reading(base, path, trusted=True, text=text).read(table)  # nobody trusts what cannot be read
    return Reviewed(path=path, content=content, widening=tuple(reading.widening))


class _Reading:
    """One file, read over a base."""

    def __init__(self, base: Config, path: str, trusted: bool, text: str = "") -> None:
        self.base = base
        self.text = text
        self.path = path
        self.folder = os.path.dirname(path)
        self.real_folder = os.path.realpath(self.folder)
        self.trusted = trusted
        self.widening: list[tuple[str, str]] = []
        """What is left out because the file is not trusted: key, and what it says."""

    def read(self, table: Mapping[str, Any]) -> Config:
        self.known("", table, _TOP)
        config = self.base
        values: dict[str, Any] = {}
        for section, keys in _SECTIONS.items():
            for key, value in self.section(section, table.get(section, {}), keys).items():
                values[f"{section}.{key}"] = value
        skills_disabled = (*config.skills_disabled, *values.get("skills.disabled", ()))
        timeout_s = values.get("timeouts.default_s", config.timeout_s)
        if not 0 < timeout_s <= TIMEOUT_S_MAX:
            raise self.wrong("timeouts.default_s", f"must be above 0 and at most {TIMEOUT_S_MAX:.0f} seconds")
        if timeout_s > config.timeout_s and not self.trusted:
            self.untrusted("timeouts.default_s", timeout_s)
            timeout_s = config.timeout_s
        for key, value in values.items():
            if key.startswith(("limits.", "audit.retention")) and value <= 0:
                raise self.wrong(key, f"must be above 0 (got {value})")
        grants = self.grants(table.get("grants", {}))
        effects = self.effects(table.get("tools", {}))
        policy, policy_places = self.policy(self.tables("policy", table.get("policy", [])))
        budgets = self.tables("budget", table.get("budget", []))
        budget_places = self.budgets(budgets)
        undeclared = values.get("isolation.undeclared", config.undeclared)
        return replace(
            config,
            sources=self.sources(table.get("source", [])) or config.sources,
            manifest_strict=values.get("manifest.strict", False) or config.manifest_strict,
            context_mode=values.get("skills.context_mode", config.context_mode),
            allow_scripts=values.get("skills.allow_scripts", config.allow_scripts),
            skills_disabled=skills_disabled,
            extra_dirs=(*config.extra_dirs, *map(self.below, values.get("skills.extra_dirs", ()))),
            keyword_match=values.get("selection.keyword_match", config.keyword_match),
            timeout_s=float(timeout_s),
            grants=(*config.grants, *grants),
            grant_files=(*config.grant_files, *(self.path for _ in grants)),
            effects=(*config.effects, *effects),
            secrets={**config.secrets, **self.secrets(table.get("secrets", {}))},
            # The user's own rules stay, and come first: a project's rule must not take a refusal away.
            policy=(*config.policy, *policy),
            policy_places=(*config.policy_places, *policy_places),
            budgets=(*config.budgets, *budgets),
            budget_places=(*config.budget_places, *budget_places),
            undeclared=Profile(undeclared) if undeclared is not None else None,
            require=Level(values.get("isolation.require", config.require)),
            unsigned=values.get("trust.unsigned", config.unsigned),
            retention_days=values.get("audit.retention_days", config.retention_days),
            day_file=values.get("audit.day_file", config.day_file),
            redact=(*config.redact, *values.get("audit.redact", ())),
            dev_mode=values.get("rye.dev_mode", config.dev_mode),
            load_dotenv=values.get("rye.load_dotenv", config.load_dotenv),
            container_engine=values.get("containers.engine", config.container_engine),
            limits=replace(
                config.limits,
                memory_bytes_max=values.get("limits.memory_bytes", config.limits.memory_bytes_max),
                processes_max=values.get("limits.processes", config.limits.processes_max),
                scratch_bytes_max=values.get("limits.scratch_bytes", config.limits.scratch_bytes_max),
            ),
            calls_per_tool=values.get("limits.calls_per_tool", config.calls_per_tool),
            zygotes=values.get("limits.zygotes", config.zygotes),
            result_bytes=values.get("limits.result_bytes", config.result_bytes),
            http=self.http(table.get("http", {}), values),
            serve=self.serving(values),
            file=self.path,
            file_text=self.text,
            trusted=self.trusted,
        )

    def section(self, name: str, value: object, keys: Mapping[str, _Key]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(name, f"must be a table, written [{name}]")
        self.known(name, value, tuple(keys))
        kept = {}
        for key, found in value.items():
            self.check(f"{name}.{key}", found, keys[key])
            if self.may(f"{name}.{key}", found, keys[key]):
                kept[key] = found
        return kept

    def sources(self, value: object) -> tuple[Source, ...]:
        found: list[Source] = []
        for number, table in enumerate(self.tables("source", value)):
            where = f"source[{number}]"
            kept = self.section(where, table, _SOURCE_KEYS)
            if sum(key in table for key in ("path", "mcp", "openapi")) != 1:
                raise self.wrong(where, "needs exactly one of path, mcp and openapi")
            if "mcp" in table:
                if "mcp" in kept:
                    found.append(self.server(where, kept))
                continue
            if "openapi" in table:
                if "openapi" in kept:
                    found.append(self.openapi(where, kept))
                continue
            path = self.below(table["path"])
            if not self.trusted and not self.is_below(path):
                # Attack: a clone that lists files from elsewhere on the machine as its tools.
                self.untrusted(f"{where}.path", table["path"])
                continue
            handlers = kept.get("handlers")
            found.append(
                Source(
                    path=path,
                    format=table.get("format"),
                    probe=bool(kept.get("trusted")),
                    handlers=self.below(handlers) if handlers else None,
                    root=self.folder,
                    starts=self.trusted,
                )
            )
        return tuple(found)

    def openapi(self, where: str, table: Mapping[str, Any]) -> Source:
        """An OpenAPI document that the file names. Only a trusted file gets here."""
        value = table["openapi"]
        if not value:
            raise self.wrong(f"{where}.openapi", "must be a file or a URL")
        secret = table.get("secret", "")
        pairs = (part.partition("=")[2] for part in secret.split(","))
        for name in pairs if "=" in secret else filter(None, (secret,)):
            self.variable(f"{where}.secret", name.strip())
        is_url = value.startswith(("http://", "https://"))
        options = OpenApiOptions(
            name=table.get("name", ""),
            tags=tuple(table.get("tags", ())),
            paths=tuple(table.get("paths", ())),
            secret=table.get("secret", ""),
            # By name: few sources are URLs. No key of its query goes into addresses of tools.
            base_url=import_module("toolcrib.journal.redaction").shown_url(value).partition("?")[0]
            if is_url
            else "",
        )
        path = value if is_url else self.below(value)
        return Source(path=path, format="openapi", root=self.folder, openapi=options, starts=True)

    def server(self, where: str, table: Mapping[str, Any]) -> Source:
        """An MCP server that the file names. Only a trusted file gets here."""
        value = table["mcp"]
        if not isinstance(value, str) and not (value and value[0]):
            raise self.wrong(f"{where}.mcp", "the command is empty")
        if isinstance(value, str) and not value.startswith(("http://", "https://")):
            raise self.wrong(f"{where}.mcp", "must be a URL, or a command as a list of texts")
        name = table.get("name") or _name_of(value)
        if not _SERVER_NAME.fullmatch(name):
            raise self.wrong(f"{where}.name", "must be letters, digits, dots, dashes and underscores")
        for number, variable in enumerate(table.get("env", ())):
            self.variable(f"{where}.env[{number}]", variable)
        definition: dict[str, Any] = {key: table[key] for key in ("headers", "timeout") if key in table}
        if isinstance(value, str):
            definition["url"] = value
        else:
            definition |= {
                "command": value[0],
                "args": value[1:],
                "cwd": self.below(table.get("cwd", ".")),
                "env": {name: f"${{{name}}}" for name in table.get("env", ())},
            }
        for key, text in definition.get("headers", {}).items():
            if not isinstance(text, str) or not isinstance(value, str):
                raise self.wrong(f"{where}.headers.{key}", "must be a text, of a source with a URL")
        if not 0 < definition.get("timeout", 1) <= TIMEOUT_S_MAX:
            raise self.wrong(f"{where}.timeout", f"must be above 0 and at most {TIMEOUT_S_MAX} seconds")
        # By name: most files name no server.
        mcp = import_module("toolcrib.formats.mcp")
        names = dict.fromkeys((*table.get("env", ()), *mcp.names_in(definition)))
        server = mcp.Server(
            name=name,
            definition=definition,
            env=tuple(names),
            trusted=bool(table.get("trusted")),
            vaulted=True,
        )
        return Source(path=self.path, format="mcp", named=True, server=server.text, starts=True)

    def variable(self, where: str, name: str) -> None:
        """A name is told and recorded; what is none may be the secret itself: it is not told."""
        if not _VARIABLE_NAME.fullmatch(name):
            raise self.wrong(where, "must be the name of a variable: letters, digits and underscores")

    def is_below(self, path: str) -> bool:
        """Whether a path lies in the file's own folder; one that does not exist is judged by its name."""
        return is_below(os.path.realpath(path), (self.real_folder,))

    def grants(self, grants: object) -> list[Grant]:
        if not isinstance(grants, dict):
            raise self.wrong("grants", 'must be tables, written [grants."PATTERN"]')
        for pattern, grant in grants.items():
            if not isinstance(grant, dict):  # said here: bare, most patterns are no TOML
                raise self.wrong(f"grants.{pattern}", 'must be a table, written [grants."PATTERN"]')
            self.section(f"grants.{pattern}", grant, _GRANT_KEYS)
        if grants and not self.trusted:
            self.untrusted("grants", grants)
            return []
        return [
            Grant(
                pattern=pattern,
                needs=tuple(grant["needs"]) if "needs" in grant else None,
                env=tuple(grant.get("env", ())),
            )
            for pattern, grant in grants.items()
        ]

    def effects(self, tables: object) -> list[StatedEffect]:
        """Read ``[tools."PATTERN"]``. A file that is not trusted can only raise effects."""
        if not isinstance(tables, dict):
            raise self.wrong("tools", 'must be tables, written [tools."PATTERN"]')
        for pattern, table in tables.items():
            where = f"tools.{pattern}"
            if not isinstance(table, dict):
                raise self.wrong(where, 'must be a table, written [tools."PATTERN"]')
            if table.get("effect") == WRITE:
                raise self.wrong(
                    f"{where}.effect", f'"{WRITE}" is a word of rules only: name create or change'
                )
            self.section(where, table, _TOOL_KEYS)
        stated = {pattern: Effect(table["effect"]) for pattern, table in tables.items() if "effect" in table}
        if not self.trusted:
            for pattern, effect in stated.items():
                if effect is not Effect.CHANGE:  # to the strongest there is nothing to lower
                    self.untrusted(f"tools.{pattern}.effect", effect.value)
        lines = lines_of(self.text, {f"tools.{pattern}" for pattern in stated}) if stated else {}
        return [
            StatedEffect(
                pattern=pattern,
                effect=effect,
                file=self.path,
                line=lines.get(f"tools.{pattern}"),
                may_lower=self.trusted,
            )
            for pattern, effect in stated.items()
        ]

    def policy(self, tables: Sequence[Any]) -> tuple[list[Mapping[str, Any]], list[str]]:
        for number, table in enumerate(tables):
            self.section(f"policy[{number}]", table, _POLICY_KEYS)
        places = self.places("policy", len(tables))
        if tables:
            # By name: many files have no rules.
            rules = import_module("toolcrib.trust.rules")
            read = rules.rules_of(tables, places)
            self.mistaken("policy", [rule.mistakes for rule in read])
            self.mistaken("policy", [list(rules.failing(table, read)) for table in tables])
        kept = []
        for number, table in enumerate(tables):
            if table["decision"] == "allow" and not self.trusted:
                self.untrusted(f"policy[{number}].decision", table)
            else:
                kept.append(number)
        return [tables[number] for number in kept], [places[number] for number in kept]

    def budgets(self, tables: Sequence[Any]) -> list[str]:
        for number, table in enumerate(tables):
            self.section(f"budget[{number}]", table, _BUDGET_KEYS)
        places = self.places("budget", len(tables))
        if tables:
            read = import_module("toolcrib.trust.budgets").budgets_of(tables, places)
            self.mistaken("budget", [budget.mistakes for budget in read])
        return places

    def mistaken(self, name: str, mistakes: Sequence[Sequence[str]]) -> None:
        """Every mistake at once: one must not hide the others, and none may leave a rule out."""
        told = [(f"{name}[{number}]", what) for number, found in enumerate(mistakes) for what in found]
        if told:
            more = f" (and {len(told) - _TOLD_MAX} more)" if len(told) > _TOLD_MAX else ""
            table, what = told[0]
            key = what.removeprefix("unknown key ").partition(": ")[0].strip("'")
            raise self.refused(
                "; ".join(f"{where}: {what}" for where, what in told[:_TOLD_MAX]) + more,
                "correct it, or name another file with --config",
                f"{table}.{key}",
                table,
            )

    def places(self, name: str, count: int) -> list[str]:
        """Where the tables of a list stand, with the line as far as it can be told."""
        wanted = [f"{name}[{number}]" for number in range(count)]
        lines = lines_of(self.text, {*wanted}) if wanted else {}
        return [f"{self.path}{f':{lines[where]}' if where in lines else ''} {where}" for where in wanted]

    def http(self, table: Mapping[str, Any], values: Mapping[str, Any]) -> HttpSettings:
        base, ca_file = self.base.http, values.get("http.ca_file")
        # Read in every file: what a person is asked about must hold no password.
        proxy = self.proxy(table["proxy"]) if "proxy" in table else None
        return HttpSettings(
            proxy=proxy if "http.proxy" in values else base.proxy,
            ca_file=self.below(ca_file) if ca_file else base.ca_file,
        )

    def proxy(self, table: Mapping[str, Any]) -> ProxySettings:
        self.section("http.proxy", table, _PROXY_KEYS)
        url = _PROXY_URL.fullmatch(table.get("url", ""))
        port = int(url[2] or 80) if url is not None else 0
        if url is None or not 0 < port < 65_536:
            # It may hold a password: it is not shown.
            raise self.wrong(
                "http.proxy.url", 'must be http://HOST:PORT; who we are is a secret: secret = "NAME"'
            )
        hosts = tuple(host.lower() for host in table.get("hosts", ()))
        for number, host in enumerate(hosts):
            if not _PROXY_HOST.fullmatch(host) or host.rpartition(".")[2] == "localhost":
                what = "must be the name of a host, or *. and a domain; addresses are always reached directly"
                raise self.wrong(f"http.proxy.hosts[{number}]", what)
        if not hosts:
            raise self.wrong("http.proxy.hosts", "must name the hosts that are reached through the proxy")
        if "secret" in table:
            self.variable("http.proxy.secret", table["secret"])
        return ProxySettings(
            host=url[1].strip("[]").lower(), port=port, hosts=hosts, secret=table.get("secret", "")
        )

    def serving(self, values: Mapping[str, Any]) -> Serving:
        given = {key.partition(".")[2]: value for key, value in values.items() if key.startswith("serve.")}
        for key, (least, most) in _SERVE_BOUNDS.items():
            if not least <= given.get(key, least) <= most:  # also not a number at all
                raise self.wrong(f"serve.{key}", f"must be {least:g} to {most:g} (got {given[key]})")
        for key in ("hosts", "origins"):
            if key in given:
                given[key] = tuple(given[key])
        return replace(self.base.serve, **given)

    def secrets(self, table: object) -> dict[str, str]:
        """Variables by the secrets they stand for: names, never values."""
        if not isinstance(table, dict):
            raise self.wrong("secrets", 'must be a table, written [secrets], with NAME = "vault:SECRET"')
        if not table:
            return {}
        # By name: few files have the table.
        is_loader = import_module("toolcrib.trust.policy").is_loader
        for variable, reference in table.items():
            self.variable(f"secrets.{variable[:60]}", variable)
            if is_loader(variable) or _is_base(variable):
                # Attack: a secret in a variable that every tool gets, or that makes programs load code.
                raise self.wrong(f"secrets.{variable}", "every tool gets this variable, or it loads code")
            if not isinstance(reference, str) or not re.fullmatch(_REFERENCE, reference):
                # It may be the secret itself: it is not told.
                raise self.wrong(f"secrets.{variable}", 'must be "vault:" and the name of a secret')
        if not self.trusted:
            self.untrusted("secrets", table)
            return {}
        return {variable: reference.partition(":")[2] for variable, reference in table.items()}

    def tables(self, name: str, value: object) -> list[Any]:
        if not isinstance(value, list):
            raise self.wrong(name, f"must be a list of tables, written [[{name}]]")
        return value

    def below(self, path: str) -> str:
        """A path of the file: relative ones start at its folder."""
        return os.path.normpath(os.path.join(self.folder, path))

    # -- checks ---------------------------------------------------------------------------------------------

    def known(self, where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in table:
            if key not in known:
                close = nearest(key, known)
                place = f"{where}.{key}" if where else key
                raise self.refused(
                    f"unknown key {place!r}",
                    f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}",
                    place,
                )

    def check(self, where: str, value: object, key: _Key) -> None:
        kinds = key.kind if isinstance(key.kind, tuple) else (key.kind,)
        if type(value) not in kinds:
            names = " or ".join(_KIND_NAMES[kind] for kind in kinds)
            raise self.wrong(where, f"must be {names}, got {_KIND_NAMES.get(type(value), 'a date or time')}")
        if key.choices and value not in key.choices:
            raise self.wrong(where, f"must be one of {', '.join(key.choices)} (got {str(value)[:60]!r})")
        if key.items is not None and isinstance(value, list):
            for number, item in enumerate(value):
                self.check(f"{where}[{number}]", item, key.items)
        if isinstance(value, str) and "\0" in value:
            raise self.wrong(where, "must not hold a NUL character")

    def may(self, where: str, value: object, key: _Key) -> bool:
        if self.trusted or key.widens is False or value in key.harmless:
            return True
        if isinstance(key.widens, str):
            place = key.choices.index
            held = {
                "trust.unsigned": self.base.unsigned,
                "isolation.undeclared": self.base.undeclared or key.choices[0],
                "isolation.require": self.base.require,
            }[where]
            if place(str(value)) >= max(place(key.widens), place(held)):
                return True
        self.untrusted(where, value)
        return False

    def wrong(self, where: str, what: str) -> ConfigError:
        return self.refused(f"{where}: {what}", "correct it, or name another file with --config", where)

    def refused(self, what: str, hint: str, *places: str) -> ConfigError:
        """``places``: where the mistake stands; the first of which the line can be told tells it."""
        lines = lines_of(self.text, places)
        line = next((lines[place] for place in places if place in lines), None)
        return ConfigError(f"{self.path}: {what}", hint, file=self.path, line=line)

    def untrusted(self, where: str, value: object) -> None:
        self.widening.append((where, _shown(value)))

    def told(self, config: Config, why: str) -> Config:
        """A configuration with what was left out of this file as problems. Apart from reading it: lines are
        looked up only once it is known that nobody trusts the file."""
        if not self.widening:
            return config
        places = {where: (where, *_tables_of(where)) for where, _ in self.widening}
        lines = lines_of(self.text, {place for each in places.values() for place in each})
        review = "review what changed" if why == _CHANGED else "read it"
        problems = (
            Problem(
                code="config.untrusted",
                severity=Severity.WARNING,
                message=f"{where} {'lowers no effect' if _is_effect(where) else 'is ignored'}: {why}",
                path=self.path,
                pointer=_pointer(where),
                line=next((lines[place] for place in places[where] if place in lines), None),
                hint=f"{review}, and if you trust it: toolcrib trust {shlex.quote(self.path)}",
            )
            for where, _ in self.widening
        )
        return replace(config, problems=(*config.problems, *problems))


def _is_effect(where: str) -> bool:
    """Return whether the key states an effect, which a file that is not trusted can still raise."""
    return where.startswith("tools.")


def _tables_of(where: str) -> Iterator[str]:
    """The tables that hold a key, the nearest first."""
    return (where[: end.start()] for end in reversed([*re.finditer(r"[.\[]", where)]))


def _pointer(where: str) -> Pointer:
    return tuple(int(step) if step.isdigit() else step for step in re.findall(r"\w+", where))


def lines_of(text: str, places: Collection[str]) -> dict[str, int]:
    """The lines of keys in the text of a file that was read, as far as they can be told."""
    # By name: as in ``_table``.
    lines: dict[str, int] = import_module("toolcrib.formats._toml").lines_of(text, places)
    return lines


def _shown(value: object) -> str:
    """What a key says, short enough for a person who is asked about it."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


def _is_base(variable: str) -> bool:
    return any(
        variable == name or (name.endswith("*") and variable.startswith(name[:-1])) for name in BASE_ENV
    )


def _name_of(value: str | Sequence[str]) -> str:
    """What an MCP server is called that nobody gave a name: its host, or its program."""
    text = value.split("/")[2] if isinstance(value, str) else os.path.basename(value[0])
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:64]


def check_rules(config: Config) -> None:
    """Raise ConfigError where a configuration that no file gave holds rules that nobody understands."""
    if not config.policy and not config.budgets:
        return
    rules, budgets = (import_module(f"toolcrib.trust.{name}") for name in ("rules", "budgets"))
    read = (
        *rules.rules_of(config.policy, config.policy_places),
        *budgets.budgets_of(config.budgets, config.budget_places),
    )
    for found in read:
        if found.mistakes:
            raise ConfigError(f"{found.place}: {'; '.join(found.mistakes)}", "correct the Config")


_TOLD_MAX: Final = 10
_FOUND: Final = "this file was found, not named, so it may only narrow"
_CHANGED: Final = "this file is not what you trusted any more"
_SHOWN_CHARS_MAX: Final = 400
_REFERENCE: Final = r"vault:[A-Za-z_][A-Za-z0-9_.-]{0,127}"
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KIND_NAMES: Final[dict[type, str]] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}
