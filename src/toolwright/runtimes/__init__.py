"""Running what a tool's invocation says: one file per kind of invocation.

This file holds what they share: the host as a runtime sees it, and the environment a tool gets. A runtime
stays inside the permit, returns failures as endings, and kills what it starts. It knows no policy, no audit
and no words for the model; the engine above it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from toolwright.model import Permit, Tool
from toolwright.sandbox import Sandbox

LOADER_NAMES: Final = frozenset(
    {
        "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME",
        "NODE_OPTIONS", "NODE_PATH", "BASH_ENV", "ENV", "IFS", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "PERL5OPT",
        "PERL5LIB", "RUBYOPT", "RUBYLIB", "GCONV_PATH", "DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH", "SHELLOPTS",
        "BASHOPTS", "PS4", "PROMPT_COMMAND",
    }
)  # fmt: skip
"""Variables that make a program load or run code: only a host grant hands them over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host as runtimes see it; made once, by ``app.py``."""

    sandbox: Sandbox
    variables: Mapping[str, str] = field(repr=False)
    """The one snapshot of the environment. Values never reach a message or a record."""
    cwd: str
    python: str
    """Our own interpreter."""
    user_space: str = ""
    system_spaces: tuple[str, ...] = ()
    """The ``.ai`` folders of installed bundles."""
    allow_scripts: bool = False
    load_dotenv: bool = False
    handlers: Mapping[str, object] = field(default_factory=dict)
    """The host's own code, by executor, group or tool name."""
    in_process: bool = False
    """The host lets verified Python tools run inside its own process."""


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
