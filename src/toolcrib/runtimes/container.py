"""Tools that run in a container: by the engine that the host enabled, inside limits, with arguments on stdin.

``calls/commands.py`` says what the command is; the sandbox starts the engine's client, which is the host's
own program and not the tool's. What confines the tool is the container. Nothing here fetches an image.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from toolcrib.bound import BoundTool
from toolcrib.calls import commands
from toolcrib.errors import Kind
from toolcrib.model import End, Ending, Permit, RunContainer, ToolCall, ToolError
from toolcrib.runtimes import Host, find_program, handed, project_of
from toolcrib.sandbox import Cancel, Start

NOT_CONFIGURED: Final = "no container runtime configured"
_CLIENT: Final = (
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY",
    "CONTAINER_HOST", "XDG_RUNTIME_DIR", "HOME", "PATH",
)  # fmt: skip
"""What the engine's client itself needs from the host; none of it goes into the container."""
_ENGINE_FAILED: Final = 125
_REMOVAL_S: Final = 10.0


class ContainerTools:
    """The runtime of ``RunContainer``."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        invocation = tool.invocation
        assert isinstance(invocation, RunContainer)
        host = self._host
        if not host.container_engine:
            return Ending(
                end=End.UNAVAILABLE,
                reason=NOT_CONFIGURED,
                hint='a trusted configuration enables one: [containers] engine = "docker"',
            )
        program = find_program(host.container_engine, host.variables.get("PATH", ""))
        if program is None:
            return Ending(
                end=End.UNAVAILABLE,
                reason=f"the container runtime {host.container_engine} is not installed",
                hint="install it, or name its program in [containers] engine",
            )
        cwd = project_of(tool, host)
        name = f"toolcrib-{call.id}"
        command = commands.container(
            invocation, call.arguments or {}, cwd=cwd, engine=host.container_engine, name=name, permit=permit
        )
        if isinstance(command, ToolError):
            end = End.REFUSED if command.kind is Kind.INVALID_ARGUMENTS else End.UNAVAILABLE
            return Ending(end=end, reason=command.message, hint=command.hint)
        given = handed(self._host, bound, permit, {})
        if isinstance(given, Ending):
            return given
        client = {key: host.variables[key] for key in _CLIENT if key in host.variables}
        named = {key: given.env[key] for key in invocation.env_names if key in given.env and key != "TMPDIR"}
        start = Start(
            program=program,
            argv=command.argv,
            env={**client, **named},
            cwd=cwd,
            stdin=command.stdin or b"",
            permit=_of_client(permit),
        )
        ending = given.cleaned(host.sandbox.run(start, cancel))
        if ending.end is not End.EXITED or ending.signal is not None:
            # The engine, not its client, is the container's parent: killing the client stops nothing.
            self._remove(replace(start, argv=(start.argv[0], "rm", "--force", name), stdin=b""))
        if ending.end is End.EXITED and ending.exit_status == _ENGINE_FAILED:
            said = ending.stderr[-2000:].decode("utf-8", "replace").strip()
            return replace(
                ending,
                end=End.UNAVAILABLE,
                reason=f"the container runtime could not run it: {said}",
                hint="is the engine running, and does it have the image? Images are not fetched by a call",
            )
        return ending

    def _remove(self, start: Start) -> None:
        limits = replace(start.permit.limits, timeout_s=_REMOVAL_S)
        self._host.sandbox.run(replace(start, permit=replace(start.permit, limits=limits)), Cancel())

    def close(self) -> None:
        """Nothing is kept between calls."""


def _of_client(permit: Permit) -> Permit:
    """What the engine's client may do: talk to its engine and read its own settings, whatever the tool may.

    Attack: a variable that the tool asks for and that is the client's own (``DOCKER_HOST``): its value is the
    host's either way, and no declaration can set it.
    """
    return Permit(
        read=("/",),
        network=True,
        unix_sockets=True,
        hidden=permit.hidden,
        limits=permit.limits,
        level=permit.level,
    )
