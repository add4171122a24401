"""Programs: argv from allowlisted mappings, JSON on stdin, resolvers and scripts first, all without a shell.

The order of one run: what the author configured, the resolvers, the command, the program's place, the start.
``calls/commands.py`` says what the command is; the sandbox starts it. Nothing here judges what comes back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from toolcrib.bound import BoundTool, StartedFiles
from toolcrib.calls import commands
from toolcrib.catalog import digests, files
from toolcrib.errors import Kind
from toolcrib.model import End, Ending, Permit, Run, RunProcess, Tool, ToolCall, ToolError
from toolcrib.paths import is_below
from toolcrib.runtimes import (
    Host,
    _prepared,
    compiles_nothing,
    find_program,
    first_line,
    handed,
    is_python,
    project_of,
)
from toolcrib.sandbox import Cancel, Start

RESOLVER_OUTPUT_BYTES_MAX: Final = 64 << 10
RESOLVER_TIMEOUT_S_MAX: Final = 10.0
SCRIPT_BYTES_MAX: Final = 1 << 20
"""A longer verified script is not handed to its shell as text: a command line holds about twice that."""

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

    def run(self, bound: BoundTool, call: ToolCall, permit: Permit, cancel: Cancel) -> Ending:
        tool = bound.tool
        project = project_of(tool, self._host)
        prepared = _prepared.prepare(tool, call, self._host, permit, project=project)
        if isinstance(prepared, Ending):
            return prepared
        given = handed(self._host, bound, permit, prepared.env)
        if isinstance(given, Ending):
            return given
        return given.cleaned(self._started(bound, call, permit, prepared, given.env, cancel))

    def _started(
        self,
        bound: BoundTool,
        call: ToolCall,
        permit: Permit,
        prepared: _prepared.Prepared,
        env: dict[str, str],
        cancel: Cancel,
    ) -> Ending:
        tool, invocation = bound.tool, bound.tool.invocation
        assert isinstance(invocation, RunProcess)
        cwd = prepared.cwd or self._host.cwd
        arguments = prepared.arguments

        own = bound.digests.own_files
        held = tuple([self._contents.file(path) for path in own])
        resolved: dict[int, str] = {}
        runs: tuple[Run, ...] = ()
        resolvers = commands.resolvers(tool, arguments, allow_scripts=self._host.allow_scripts)
        if resolvers:
            changed = _changed(bound, call, held)
            if changed is not None:
                return changed
            # Attack: resolvers that take their time one after the other, beyond what the call may take.
            ends = time.monotonic() + permit.limits.timeout_s
            for resolving in resolvers:
                within = _within(permit, ends - time.monotonic())
                if within is None or cancel.is_set:
                    break
                found, more = self._resolve(invocation, resolving, held, env, cwd, within, cancel)
                runs += more
                if found is not None:
                    resolved[resolving.place] = found
            left = _within(permit, ends - time.monotonic())
            if left is None or cancel.is_set:
                return Ending(end=End.CANCELLED if cancel.is_set else End.TIMED_OUT, runs=runs)
            permit = left

        command = commands.command(tool, arguments, call.raw, cwd=cwd, resolved=resolved)
        if isinstance(command, ToolError):
            end = _ENDS.get(command.kind, End.REFUSED)
            return Ending(end=end, reason=command.message, hint=command.hint, runs=runs)
        argv = command.argv if prepared.argv is None else prepared.argv
        found = find_program(argv[0], env.get("PATH", ""))
        if found is None:
            missing = Run(argv=argv, cwd=cwd, env_names=tuple(env))
            return Ending(end=End.NOT_STARTED, reason="No such file or directory", runs=(*runs, missing))
        refused = self._refused(bound, invocation, call, found, held)
        if refused is not None:
            return replace(refused, runs=runs)
        if permit.write:
            if bound.begins is None or bound.begins[:2] != (found, held):
                bound.begins = (found, held, first_line(found))
            if is_python(found, argv, bound.begins[2]):
                compiles_nothing(env)
        started = argv
        looked = bound.started
        if looked is None or looked.held != held or permit.loads:
            # The scripts of resolvers have had their turn.
            run_now = [pair for pair in zip(own, held, strict=True) if not isinstance(pair[0], digests.Aside)]
            started = _from_memory(argv, run_now) if permit.loads else argv
            if started is not argv:
                run_now = [pair for pair in run_now if pair[0] != argv[1]]
            # Attack: a link that is turned between the check and the start: from here on it plays no part.
            real = {path: os.path.realpath(path) for path, file in run_now if self._is_link(path, file)}
            if real:
                found = real.get(found, found)
                for path in real.keys() & set(started[1:]):  # the first one is ours, others are the call's
                    place = started.index(path, 1)
                    started = (*started[:place], real[path], *started[place + 1 :])
                run_now = [(real.get(path, path), file) for path, file in run_now]
            skill_dir = (invocation.skill_dir,) if invocation.skill_dir else ()
            looked = StartedFiles(
                held,
                (*[path for path, _ in run_now], *skill_dir),
                tuple([(path, file.content) for path, file in run_now if file and file.content is not None]),
                {path: file.fingerprint for path, file in run_now if file},
            )
            if not real and not permit.loads and None not in held:
                bound.started = looked
        start = Start(
            program=found,
            argv=started,
            env=env,
            cwd=cwd,
            stdin=command.stdin or b"",
            permit=permit,
            own=looked.own + prepared.own,
            sealed=looked.sealed,
            known=looked.known,
        )
        ending = self._host.sandbox.run(start, cancel)
        if started is not argv:  # records show which script ran: not its text, nor where a link led
            ending = replace(ending, runs=tuple([replace(run, argv=argv) for run in ending.runs]))
        notes = (*prepared.notes, *ending.notes)
        return replace(ending, runs=runs + ending.runs, notes=notes) if runs or notes else ending

    def _refused(
        self,
        bound: BoundTool,
        invocation: RunProcess,
        call: ToolCall,
        program: str,
        held: tuple[digests.Held | None, ...],
    ) -> Ending | None:
        """Why the program may not be started, where it may not."""
        file = held[0] if held else None
        sound = bound.program
        if sound is not None and sound[0] == program and sound[1] is file:  # mode and place as they were
            return _changed(bound, call, held)
        if held and file is None and not os.path.lexists(program):
            return None  # the start itself will say so
        tool, beneath = bound.tool, invocation.beneath
        if beneath is not None and not self._lies_beneath(tool, program, beneath, file):
            # Attack: a program below the manifest that is a link to one elsewhere on the machine.
            place = os.path.relpath(beneath, os.path.dirname(tool.origin.path))
            return Ending(end=End.DENIED, reason=f"command[0] escapes ./{place} after resolving links")
        if tool.origin.digest and held and (file is None or file.digest != tool.origin.digest):
            # Attack: a program that is replaced after it said what it is: another one would get the call.
            return Ending(
                end=End.DENIED,
                reason=f"{program} changed since its schema was read",
                hint="load the tools again, so that it is asked anew",
            )
        own = any(one is not None and one.path == program for one in held)
        if own and not os.access(program, os.X_OK):  # its bytes run from memory, where nothing has a mode
            return Ending(end=End.NOT_STARTED, reason="Permission denied")
        if file is not None and file.path == program:
            bound.program = (program, file)
        return _changed(bound, call, held)

    def _lies_beneath(self, tool: Tool, program: str, folder: str, file: digests.Held | None) -> bool:
        base = os.path.dirname(tool.origin.path)
        # Attack: the folder of programs is itself a link to one elsewhere. Only the way to it may hold links.
        if is_below(folder, (base,)):
            folder = os.path.normpath(os.path.join(os.path.realpath(base), os.path.relpath(folder, base)))
        else:
            folder = os.path.realpath(folder)
        if file is None:
            return files.inside(program, folder)
        # Attack: a link that leads out while the file is read and back while its place is looked at.
        return file.path == program and self._contents.is_inside(file, folder)

    def _is_link(self, path: str, file: digests.Held | None) -> bool:
        return os.path.islink(path) if file is None else self._contents.is_link(file)

    # -- resolvers ------------------------------------------------------------------------------------------

    def _resolve(
        self,
        invocation: RunProcess,
        resolving: commands.Resolving,
        held: tuple[digests.Held | None, ...],
        env: Mapping[str, str],
        cwd: str,
        permit: Permit,
        cancel: Cancel,
    ) -> tuple[str | None, tuple[Run, ...]]:
        """What a resolver printed, or None: then the value stays as it is, and the record says why."""

        def kept(note: str) -> tuple[None, tuple[Run, ...]]:
            return None, (Run(argv=argv, cwd=cwd, what="resolver", note=f"{note}; the value is kept"),)

        argv = resolving.argv
        sealed: tuple[tuple[str, bytes], ...] = ()
        if resolving.script is not None:
            there = {file.path: file for file in held if file is not None and file.digest != digests.ABSENT}
            script = next((there[path] for path in resolving.scripts if path in there), None)
            if script is None:
                return kept("no such script")
            path = os.path.realpath(script.path) if os.path.islink(script.path) else script.path
            argv = ("sh", path, *resolving.args)
            # Attack: a script that is a link to a file nobody reviewed with the skill, or was one then.
            if not self._contents.is_inside(script, os.path.realpath(f"{invocation.skill_dir}/scripts")):
                return kept("leads out of the scripts folder")
            sealed = ((path, script.content),) if script.content is not None else ()
        program = find_program(argv[0], env.get("PATH", ""))
        if program is None:
            return kept("not found on PATH")
        limits = replace(
            permit.limits,
            timeout_s=min(permit.limits.timeout_s, RESOLVER_TIMEOUT_S_MAX),
            stdout_bytes_max=RESOLVER_OUTPUT_BYTES_MAX,
        )
        ending = self._host.sandbox.run(
            Start(
                program=program,
                argv=argv,
                env=env,
                cwd=cwd,
                permit=replace(permit, limits=limits),
                own=(invocation.skill_dir,) if invocation.skill_dir else (),
                sealed=sealed,
                what="resolver",
            ),
            cancel,
        )
        text = ending.stdout.decode("utf-8", "replace").strip()
        if ending.end is End.EXITED and ending.exit_status == 0 and text:
            return text, ending.runs
        return None, tuple(replace(run, note="failed; the value is kept") for run in ending.runs)


def _changed(bound: BoundTool, call: ToolCall, held: tuple[digests.Held | None, ...]) -> Ending | None:
    """Attack: a file that is replaced between the check and the start."""
    if call.runs_digest in (None, digests.combined(bound.digests.how, held)):
        return None
    return Ending(
        end=End.DENIED,
        reason="the tool's files changed between being checked and being started",
        hint="call it again once nobody is writing to them",
    )


def _from_memory(argv: tuple[str, ...], own: Sequence[tuple[str, digests.Held | None]]) -> tuple[str, ...]:
    """The command of a shell with the text of its script in the place of the path.

    Attack: whoever may write to a folder above a verified script puts another one in its place while the
    shell opens it. What the shell is handed cannot be replaced. ``$0`` stays the path.
    """
    if len(argv) < 2 or os.path.basename(argv[0]) not in _prepared.SHELLS:
        return argv
    held = next((file for path, file in own if path == argv[1]), None)
    content = held.content if held is not None else None
    if content is None or len(content) > SCRIPT_BYTES_MAX or b"\0" in content:
        return argv  # shown in its place by the sandbox, and looked at again afterwards
    room = commands.ELEMENT_BYTES_MAX - 1
    parts = [
        content[at : at + room].decode("utf-8", "surrogateescape") for at in range(0, len(content), room)
    ]
    if len(parts) < 2:
        return (argv[0], "-c", *(parts or [""]), *argv[1:])
    # The parts are the first parameters until the text itself begins, on the line on which it would.
    whole = "".join(f"${{{number}}}" for number in range(1, len(parts) + 1))
    return (argv[0], "-c", f'eval "shift {len(parts)};{whole}"', argv[1], *parts, *argv[2:])


def _within(permit: Permit, left_s: float) -> Permit | None:
    """The permit with no more time than is left; None where none is."""
    return replace(permit, limits=replace(permit.limits, timeout_s=left_s)) if left_s > 0 else None
