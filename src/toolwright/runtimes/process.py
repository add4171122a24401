"""Programs: argv from allowlisted mappings, JSON on stdin, resolvers and scripts first, all without a shell.

The order of one run: what the author configured, the resolvers, the command, the program's place, the start.
``calls/commands.py`` says what the command is; the sandbox starts it. Nothing here judges what comes back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from toolwright.calls import commands
from toolwright.catalog import digests, files
from toolwright.errors import Kind
from toolwright.model import End, Ending, Permit, Run, RunProcess, Tool, ToolCall, ToolError
from toolwright.records import replace
from toolwright.runtimes import Host, _settings, environment, find_program, project_of
from toolwright.sandbox import Cancel, Start

RESOLVER_OUTPUT_BYTES_MAX: Final = 64 << 10
RESOLVER_TIMEOUT_S_MAX: Final = 10.0
_HANDED_MAX: Final = 1024

_ENDS: Final = {
    Kind.INVALID_ARGUMENTS: End.REFUSED,
    Kind.DENIED: End.DENIED,
    Kind.UNAVAILABLE: End.UNAVAILABLE,
}


class ProcessTools:
    """The runtime of ``RunProcess``."""

    def __init__(self, host: Host, contents: digests.Contents) -> None:
        self._host = host
        self._contents = contents
        self._beneath: dict[str, digests.Held] = {}
        """Programs that were found to lie where they must, as they were then."""
        self._handed: dict[int, tuple[Tool, Permit, dict[str, str]]] = {}
        """What the last call of a tool under a permit found in the environment."""

    def run(self, tool: Tool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        invocation = tool.invocation
        assert isinstance(invocation, RunProcess)
        project = project_of(tool, self._host)
        prepared = _settings.prepare(tool, call, self._host, permit, project=project)
        if isinstance(prepared, Ending):
            return prepared
        env = {**self._environment(tool, permit), **prepared.env}
        if "TMPDIR" in tool.needs.base_env:
            env["TMPDIR"] = ""  # the sandbox names the call's scratch folder here
        cwd = prepared.cwd or self._host.cwd
        arguments = prepared.arguments

        resolved: dict[int, str] = {}
        runs: tuple[Run, ...] = ()
        for resolving in commands.resolvers(tool, arguments, allow_scripts=self._host.allow_scripts):
            found, more = self._resolve(tool, resolving, env, cwd, permit, cancel)
            runs += more
            if found is not None:
                resolved[resolving.place] = found

        command = commands.command(tool, arguments, call.raw, cwd=cwd, resolved=resolved)
        if isinstance(command, ToolError):
            end = _ENDS.get(command.kind, End.REFUSED)
            return Ending(end=end, reason=command.message, hint=command.hint, runs=runs)
        argv = command.argv if prepared.argv is None else prepared.argv
        found = find_program(argv[0], env.get("PATH", ""))
        if found is None:
            missing = Run(argv=argv, cwd=cwd, env_names=tuple(env))
            return Ending(end=End.NOT_STARTED, reason="No such file or directory", runs=(*runs, missing))
        own = digests.own_files(tool)
        held = tuple([self._contents.file(path) for path in own])
        refused = self._refused(invocation, call, found, held)
        if refused is not None:
            return replace(refused, runs=runs)
        skill_dir = (invocation.skill_dir,) if invocation.skill_dir else ()
        start = Start(
            program=found,
            argv=argv,
            env=env,
            cwd=cwd,
            stdin=command.stdin or b"",
            permit=permit,
            own=(*own, *skill_dir, *prepared.own),
            sealed=tuple([(file.path, file.content) for file in held if file and file.content is not None]),
        )
        ending = self._host.sandbox.run(start, cancel)
        notes = (*prepared.notes, *ending.notes)
        return replace(ending, runs=runs + ending.runs, notes=notes) if runs or notes else ending

    def _environment(self, tool: Tool, permit: Permit) -> Mapping[str, str]:
        known = self._handed.get(id(permit))
        if known is None or known[0] is not tool or known[1] is not permit:
            if len(self._handed) >= _HANDED_MAX:
                self._handed.clear()
            known = self._handed[id(permit)] = (tool, permit, environment(self._host, tool, permit))
        return known[2]

    def _refused(
        self, invocation: RunProcess, call: ToolCall, program: str, held: tuple[digests.Held | None, ...]
    ) -> Ending | None:
        """Why the program may not be started, where it may not."""
        if held and held[0] is None and not os.path.lexists(program):
            return None  # the start itself will say so
        beneath = invocation.beneath
        if beneath is not None and not self._lies_beneath(program, beneath, held):
            # Attack: a program below the manifest that is a link to one elsewhere on the machine.
            return Ending(end=End.DENIED, reason=f"{program} leads out of {beneath}")
        own = any(file is not None and file.path == program for file in held)
        if own and not os.access(program, os.X_OK):  # its bytes run from memory, where nothing has a mode
            return Ending(end=End.NOT_STARTED, reason="Permission denied")
        digest = self._contents.together(digests.how(invocation), held)
        if call.runs_digest is not None and digest != call.runs_digest:
            # Attack: a file that is replaced between the check and the start.
            return Ending(
                end=End.DENIED,
                reason="the tool's files changed between being checked and being started",
                hint="call it again once nobody is writing to them",
            )
        return None

    def _lies_beneath(self, program: str, folder: str, held: tuple[digests.Held | None, ...]) -> bool:
        """Asked of the disk again only when the file is another one: every call asks."""
        file = held[0] if held else None
        known = self._beneath.get(program)
        if file is not None and known is file:
            return True
        if not files.inside(program, os.path.realpath(folder)):
            return False
        if file is not None:
            self._beneath[program] = file
        return True

    # -- resolvers ------------------------------------------------------------------------------------------

    def _resolve(
        self,
        tool: Tool,
        resolving: commands.Resolving,
        env: Mapping[str, str],
        cwd: str,
        permit: Permit,
        cancel: Cancel,
    ) -> tuple[str | None, tuple[Run, ...]]:
        """What a resolver printed, or None: then the value stays as it is, and the record says why."""
        argv = resolving.argv
        if resolving.script is not None:
            script = next((path for path in resolving.scripts if os.path.isfile(path)), None)
            if script is None:
                missing = Run(argv=argv, cwd=cwd, what="resolver", note="no such script; the value is kept")
                return None, (missing,)
            argv = ("sh", script, *resolving.args)
        program = find_program(argv[0], env.get("PATH", ""))
        if program is None:
            missing = Run(argv=argv, cwd=cwd, what="resolver", note="not found on PATH; the value is kept")
            return None, (missing,)
        limits = replace(
            permit.limits,
            timeout_s=min(permit.limits.timeout_s, RESOLVER_TIMEOUT_S_MAX),
            stdout_bytes_max=RESOLVER_OUTPUT_BYTES_MAX,
        )
        invocation = tool.invocation
        assert isinstance(invocation, RunProcess)
        ending = self._host.sandbox.run(
            Start(
                program=program,
                argv=argv,
                env=env,
                cwd=cwd,
                permit=replace(permit, limits=limits),
                own=(invocation.skill_dir,) if invocation.skill_dir else (),
                what="resolver",
            ),
            cancel,
        )
        text = ending.stdout.decode("utf-8", "replace").strip()
        if ending.end is End.EXITED and ending.exit_status == 0 and text:
            return text, ending.runs
        return None, tuple(replace(run, note="failed; the value is kept") for run in ending.runs)
