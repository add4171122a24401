"""Running what a tool's invocation says: one file per kind of invocation.

This file holds what they share: the host as a runtime sees it, and the environment a tool gets. A runtime
stays inside the permit, returns failures as endings, and kills what it starts. It knows no policy, no audit
and no words for the model; the engine above it does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Protocol

from msgspec import field

from toolcrib.bound import BoundTool, ToolEnvironment
from toolcrib.catalog.digests import Contents
from toolcrib.catalog.files import find_program as find_program
from toolcrib.catalog.sources import Spaces
from toolcrib.journal.redaction import secret_parts
from toolcrib.model import End, Ending, Permit, Tool, ToolCall, Vetted
from toolcrib.paths import TEMPORARY_FOLDER, is_below
from toolcrib.records import Discreet
from toolcrib.runtimes._cleaning import cleaned
from toolcrib.sandbox import Cancel, Sandbox
from toolcrib.trust.secrets import Secrets, Withheld


class Runtime(Protocol):
    """Runs one kind of invocation inside the permit; returns failures, kills what it starts."""

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending: ...


_NO_SPACES: Final = Spaces()


class Host(Discreet, frozen=True, kw_only=True):
    """The host as runtimes see it; made once, by ``app.py``."""

    HIDDEN: ClassVar = (
        "variables",
        "secrets",
        "contents",
    )

    sandbox: Sandbox
    variables: Mapping[str, str]
    """The one snapshot of the environment. Values never reach a message or a record."""
    cwd: str
    python: str
    """Our own interpreter."""
    spaces: Spaces = _NO_SPACES
    """Rye's spaces: the user's, and those of installed bundles."""
    allow_scripts: bool = False
    load_dotenv: bool = False
    """Tools with a chain also get the variables of their project's ``.env``."""
    trusted_projects: frozenset[str] = frozenset()
    """Roots (real paths) of projects whose own interpreters may run."""
    handlers: Mapping[str, object] = field(default_factory=dict)
    """The host's own code, by executor, group or tool name."""
    in_process: bool = False
    """The host lets verified Python tools run inside its own process."""
    secrets: Secrets = field(default_factory=Secrets)
    """What may come out of the vault, looked up for each start."""
    contents: Contents = field(default_factory=Contents)
    """The files that are looked at for calls, with the bytes that were seen."""
    vet_config: Callable[[str, bytes, str], Vetted] | None = None
    """What is known about a configuration file: its path, its bytes, its address. None: nobody looks."""
    is_left_alone: Callable[[str], bool] = lambda _path: False
    """Whether a file that is found by its name may be a tool's, so that it does not count."""
    container_engine: str = ""
    """The program that runs containers, by name or path; empty: the host enabled none."""


def environment(host: Host, tool: Tool, permit: Permit) -> dict[str, str]:
    """What the tool sees: the format's base, what it asked for and was granted; nothing else.

    ``TMPDIR`` is left to the sandbox. Attack: ``BASH_FUNC_x%%`` and loader variables of the host that would
    run code in the tool; they are in no base, and only a grant by name (or of everything) hands them over.
    """
    if "*" in permit.env:
        return dict(host.variables)
    exact = {name for name in tool.needs.base_env if not name.endswith("*")} - {"TMPDIR"}
    prefixes = tuple(name[:-1] for name in tool.needs.base_env if name.endswith("*"))
    wanted = exact | set(permit.env)
    return {
        name: value
        for name, value in host.variables.items()
        if (name in wanted or (prefixes and name.startswith(prefixes))) and (value or name in permit.env)
    }


def is_python(program: str, argv: Sequence[str], first_line: bytes = b"") -> bool:
    """Whether a command starts a Python: by its names, by the words of ``env``, or by its first line."""
    if any(os.path.basename(word).startswith("python") for word in (program, *argv[:_WORDS_LOOKED_AT])):
        return True
    return first_line.startswith(b"#!") and b"python" in first_line


def first_line(program: str) -> bytes:
    """The first line of a program, if that names an interpreter; else nothing."""
    try:
        descriptor = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            line = file.read(_FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return b""
    return line if line.startswith(b"#!") else b""


def compiles_nothing(env: dict[str, str]) -> None:
    """Attack: compiled code that a tool puts beside a module. So that none is there which a tool made, no
    Python that may write makes any."""
    env.setdefault("PYTHONDONTWRITEBYTECODE", "1")


def vaulted(host: Host, tool: Tool, permit: Permit) -> tuple[str, ...]:
    """The tool's variables whose values may come out of the vault. ``*`` is the environment, and no vault."""
    names = (*permit.env, *tool.needs.env) if "*" in permit.env else permit.env
    return host.secrets.candidates(names, permit.vault)


def withheld(no: Withheld) -> Ending:
    """A start that must not be: what it needs cannot be had."""
    return Ending(end=End.UNAVAILABLE, reason=no.reason, hint=no.hint)


class Handed(Discreet, frozen=True, kw_only=True):
    """What one start is handed."""

    HIDDEN: ClassVar = (
        "env",
        "secrets",
    )

    env: dict[str, str]
    secrets: Mapping[str, str] = field(default_factory=dict)
    """The values in it that nobody else is to learn, by their names."""

    def cleaned(self, ending: Ending) -> Ending:
        """How the start ended, without what it was handed."""
        return cleaned(ending, self.secrets) if self.secrets else ending


_WORDS_LOOKED_AT: Final = 4
_FIRST_LINE_BYTES: Final = 256
_TEMPORARY_FOLDER: Final = os.path.realpath(TEMPORARY_FOLDER)
"""Where programs make temporary files if no variable names another folder."""


def handed(host: Host, bound: BoundTool, permit: Permit, added: Mapping[str, str]) -> Handed | Ending:
    """What a tool sees, with what its configuration adds; an ending where a secret cannot be had. Values of
    the vault are looked up each time, and not kept."""
    tool, known = bound.tool, bound.environment
    granted = (permit.env, permit.vault)
    if known is None or known.granted != granted:
        env = environment(host, tool, permit)
        known = ToolEnvironment(granted, env, secret_parts(env), vaulted(host, tool, permit))
        bound.environment = known
    env, secrets = {**known.env, **added}, known.secrets
    if added:
        secrets = {**secrets, **secret_parts(added)}
    if known.vaulted:
        try:
            values = host.secrets.values(known.vaulted)
        except Withheld as no:
            return withheld(no)
        env = {**known.env, **values, **added}
        secrets = {**secrets, **values}
    if "TMPDIR" in tool.needs.base_env or not is_below(_TEMPORARY_FOLDER, permit.write):
        env["TMPDIR"] = ""  # the sandbox names the call's scratch folder here
    return Handed(env=env, secrets=secrets)


def project_of(tool: Tool, host: Host) -> str:
    """The project a tool is told: the one it lies in, or, for a tool of the user or the system, ours."""
    return host.spaces.project_of(tool.origin.path) or host.cwd
