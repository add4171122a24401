"""What a runtime starts with besides what the invocation says: nothing, unless the tool has a chain.

What an author's configuration makes of a call is ``_settings.py``, which is imported with the first tool that
has any: most have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import field

from toolcrib.jsontext import JsonObject
from toolcrib.model import (
    CallFunction,
    CallHttp,
    End,
    Ending,
    NotCallable,
    Permit,
    RunContainer,
    RunProcess,
    Tool,
    ToolCall,
)
from toolcrib.records import Discreet
from toolcrib.runtimes import Host

if TYPE_CHECKING:
    from toolcrib.runtimes._dependencies import Loaded

SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})


class Prepared(Discreet, frozen=True, kw_only=True):
    """What a runtime starts with, besides what the invocation says."""

    HIDDEN: ClassVar = (
        "env",
        "http",
        "verified",
    )

    arguments: JsonObject
    """As the tool gets them: fixed ones set, nested, with ``resolved_config``."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Laid over ``runtimes.environment``: what the author set. Values never reach a message or a record."""
    interpreter: str | None = None
    """The absolute path of the chosen interpreter; None: the runtime's own."""
    argv: tuple[str, ...] | None = None
    """The author's command, expanded; None: program and fixed arguments of the invocation, as they are."""
    cwd: str | None = None
    """None: the host's working directory."""
    http: CallHttp | None = None
    """The author's request, expanded; None: the invocation's, as it is."""
    own: tuple[str, ...] = ()
    """Folders and files that the tool reads besides its own file: its anchor, its libraries, its
    interpreter. Only those that the permit does not open anyway."""
    dependencies: tuple[tuple[str, str], ...] = ()
    """Path below the anchor and SHA-256 of every file that the tool may load from there."""
    verified: Loaded | None = None
    """These files, and nothing else of their folders, where they were verified for this call."""
    notes: tuple[str, ...] = ()


def prepare(tool: Tool, call: ToolCall, host: Host, permit: Permit, *, project: str) -> Prepared | Ending:
    """What the author's configuration makes of a call whose arguments are checked, or why it must not run.

    ``project`` is the absolute root that the tool is told (``runtimes.project_of``).
    """
    invocation = tool.invocation
    if isinstance(invocation, NotCallable):
        return Ending(end=End.UNAVAILABLE, reason=invocation.reason)
    if not tool.chain or isinstance(invocation, (RunContainer, CallFunction)):
        env = dict(invocation.env) if isinstance(invocation, RunProcess) else {}
        return Prepared(arguments=call.arguments or {}, env=env)
    found: Prepared | Ending = import_module("toolcrib.runtimes._settings").prepare(
        tool, call, host, permit, project=project
    )
    return found
