"""``toolcrib doctor``: what works on this machine, what that means, and how to get what does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from shlex import quote

import click
from msgspec import Struct
from msgspec.structs import asdict, replace

from toolcrib import app
from toolcrib.catalog import files
from toolcrib.catalog.searched import LeftOut
from toolcrib.config import Config, Environment, searchable
from toolcrib.doors.cli import Shared, _render, examples, shared_options
from toolcrib.errors import shortage_told
from toolcrib.model import Level
from toolcrib.runtimes import javascript
from toolcrib.sandbox import probe

_MISSING = 69
_FREE_BYTES_MIN = 256 << 20
_VERSION_S = 10.0
_WORDS_LINES = 5
_PROGRAMS = (
    ("python3", "Python programs among the tools", "install Python 3"),
    ("bash", "Bash tools", "install bash"),
    ("git", "tools that use git", "install git"),
)


class Finding(Struct, frozen=True, kw_only=True):
    """One thing looked at."""

    part: str
    name: str
    works: bool
    means: str
    detail: str = ""
    fix: str = ""
    required: bool = False
    """Without it nothing can be called as the configuration wants it."""


@click.command(
    "doctor",
    epilog=examples("toolcrib doctor", "toolcrib doctor --json"),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(shared: Shared, as_json: bool) -> int:
    """Say what works on this machine: isolation, interpreters, state; each with the fix where it does not.

    Nothing of yours is changed, and nothing is run but the MCP servers that the configuration names. Exit
    status: 69 when something that the configuration requires is missing, else 0.
    """
    config = shared.resolved()
    environment, left_out = searchable(shared.environment, config)
    tried = probe.try_layers(base=shared.environment.temporary_folder)
    found = [
        *_isolation(tried, config, environment),
        *_user(),
        *_left_out(left_out),
        *_programs(environment),
        *_node(environment),
        *_state(config),
        *_scratch(tried),
        *_servers(config, shared.environment),
    ]
    if as_json:
        _render.write_json({"level": tried.level.value, "findings": [asdict(finding) for finding in found]})
    else:
        _write(found, tried.level, shared)
    sys.stdout.flush()
    return _MISSING if any(finding.required and not finding.works for finding in found) else 0


# -- looking ------------------------------------------------------------------------------------------------


def _isolation(tried: probe.Tried, config: Config, environment: Environment) -> Iterator[Finding]:
    for layer in probe.report(tried):
        yield Finding(
            part="isolation", name=layer.name, works=layer.works, means=layer.means, detail=layer.reason,
            fix=layer.fix,
        )  # fmt: skip
    enough = probe.is_enough(tried, config.require)
    yield Finding(
        part="isolation",
        name="level",
        works=enough,
        means=_MEANS[tried.level],
        detail=f"{tried.level} works, {config.require} is required",
        fix="" if enough else "mend the layers above, or lower [isolation] require",
        required=True,
    )
    found = (shutil.which(name, path=environment.path) for name in ("cc", "gcc", "clang"))
    compiler = next(filter(None, found), None)
    built = tried.spawner.reason == ""
    yield Finding(
        part="isolation",
        name="compiler",
        works=compiler is not None or built,
        means="an installation from source builds the spawner",
        detail=compiler or ("none, and none is needed: the spawner is built" if built else "none found"),
        fix="" if compiler or built else "install gcc or clang and reinstall, or install from a wheel",
    )


_MEANS = {
    Level.PORTABLE: "time and output are limited; what tools declare is not enforced",
    Level.RESTRICTED: "what tools declare is enforced; a daemon that leaves its group may outlive its call",
    Level.SUPERVISED: "what tools declare is enforced, and nothing outlives its call",
}


def _user() -> Iterator[Finding]:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        yield Finding(part="user", name="root", works=True, means="tools run as you", detail="not root")
        return
    yield Finding(
        part="user",
        name="root",
        works=False,
        means="tools run as another user where they can, else as root without its capabilities; the kernel's "
        "limit on processes does not hold for root",
        detail="running as root",
        fix="run as an ordinary user",
    )


def _left_out(left_out: Iterable[LeftOut]) -> Iterator[Finding]:
    """The folders in which no program is looked for. No value of a variable but those is told."""
    for each in left_out:
        record = each.record
        yield Finding(
            part="programs",
            name=each.folder,
            works=False,
            means=f"nothing is looked for in this folder of {each.variable}",
            detail=each.why,
            fix=f"look at it, and if it is yours: toolcrib trust {quote(record.path)}"
            if record is not None
            else f"take it out of {each.variable}, or name a folder that exists and holds programs alone",
        )


def _programs(environment: Environment) -> Iterator[Finding]:
    for name, means, fix in _PROGRAMS:
        path = shutil.which(name, path=environment.path)
        version, why, short = _version(path, environment) if path is not None else ("", "not on PATH", "")
        yield Finding(
            part="programs",
            name=name,
            works=bool(version),
            means=means,
            detail=f"{version} ({path})" if version else why,
            fix="" if version else short or fix,
        )


def _node(environment: Environment) -> Iterator[Finding]:
    """Node, whether it runs TypeScript, and whether calls can be forked from one that stays."""
    for name, file, means in (
        ("node", "", "JavaScript tools"),
        ("typescript", "tool.ts", "TypeScript tools, which Node runs by itself"),
    ):
        path = javascript.find_node(environment.variables, file=file)
        version, why, short = _version(path, environment) if path is not None else ("", "not found", "")
        works = bool(version) and (not file or javascript.runs_types(version))
        yield Finding(
            part="javascript",
            name=name,
            works=works,
            means=means,
            detail=f"{version} ({path})" if version else why,
            fix="" if works else short or javascript.GET_NODE,
        )
    built = javascript.installed_addon() is not None
    yield Finding(
        part="javascript",
        name="forker",
        works=built,
        means="a JavaScript tool stays loaded between calls, at the level supervised",
        detail="" if built else "not built, so each call starts a Node",
        fix="" if built else "install gcc or clang and reinstall, or install from a wheel",
    )


def _version(path: str, environment: Environment) -> tuple[str, str, str]:
    """What a program says of its version; where it says nothing: why, and what to do where that is known."""
    why = f"{path} does not start"
    try:
        done = subprocess.run(
            [path, "--version"],
            env=environment.probe_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_S,
            check=False,
            cwd="/",
        )
        if done.returncode == 0:
            lines = done.stdout.decode("utf-8", "replace").splitlines()
            return (lines[0][:80] if lines else "no version"), "", ""
    except OSError as error:
        if short := shortage_told(error.strerror or ""):
            return "", f"{why}: {short[0]}", short[1]
    except subprocess.SubprocessError:
        pass
    return "", why, ""


def _state(config: Config) -> Iterator[Finding]:
    folder = config.state
    means = "every call is recorded before it runs; without a journal nothing runs"
    if folder is None:
        yield Finding(
            part="state", name="journal", works=False, means=means, fix="name a folder: --state DIR",
            required=True,
        )  # fmt: skip
        return
    for name in ("state", "journal"):
        path = folder if name == "state" else os.path.join(folder, "journal")
        problem = _unwritable(path) or ("others may write it" if files.is_open_to_others(path) else "")
        yield Finding(
            part="state",
            name=name,
            works=not problem,
            means=means if name == "journal" else "what we keep between runs",
            detail=problem or path,
            fix=_state_fix(path, problem) if problem else "",
            required=True,
        )
    free = _free(folder)
    yield Finding(
        part="state",
        name="disk",
        works=free is None or free >= _FREE_BYTES_MIN,
        means="a full disk stops every call, because it could not be recorded",
        detail="unknown" if free is None else f"{free >> 20} MiB free",
        fix="make room, or name another folder: --state DIR"
        if free is not None and free < _FREE_BYTES_MIN
        else "",
    )


def _scratch(tried: probe.Tried) -> Iterator[Finding]:
    if tried.no_scratch:
        yield Finding(
            part="state", name="scratch", works=False,
            means="every call has a scratch folder; without one nothing runs",
            detail=tried.no_scratch, fix=probe.SCRATCH_FIX, required=True,
        )  # fmt: skip


def _servers(config: Config, environment: Environment) -> Iterator[Finding]:
    """The MCP servers of the sources, asked now. Each is told with what it complained about last."""
    listed = tuple(source for source in config.sources if source.server or source.path.endswith(".json"))
    if not listed or config.state is None:
        return
    with app.open(replace(config, sources=listed), environment=environment) as crib:
        for state in crib.servers():
            yield Finding(
                part="servers",
                name=state.name,
                works=state.alive,
                means=f"its tools, as {state.key}*",
                detail=state.about if state.alive else state.why,
                fix="" if state.alive else _words_of(state.where, state.hint, state.stderr),
            )


def _words_of(where: str, hint: str, stderr: str) -> str:
    said = stderr.splitlines()[-_WORDS_LINES:]
    parts = (hint, f"it is reached by {where}", *(f"it said: {line}" for line in said))
    return "; ".join(filter(None, parts))


def _state_fix(path: str, problem: str) -> str:
    """Nobody changes the mode of what is not his own, of a file, or of a disk that is read-only."""
    if short := shortage_told(problem):
        return short[1]
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    is_ours = os.path.isdir(path) and os.stat(path).st_uid == os.geteuid()
    if is_ours and not os.statvfs(path).f_flag & os.ST_RDONLY:
        return "make it writable for you alone (chmod 700), or name another folder: --state DIR"
    return "name a folder of yours: --state DIR, or set HOME (or XDG_STATE_HOME) to one"


def _unwritable(path: str) -> str:
    """Why nothing can be written to a folder, or to the one in which it would be made; empty when it can."""
    if os.path.lexists(path) and not os.path.isdir(path):
        return f"{path} is not a folder"
    at = path
    while not os.path.lexists(at):
        at = os.path.dirname(at)
    if not os.path.isdir(at):
        return f"{at} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=at, buffering=0) as file:
            file.write(b"x")
    except OSError as error:
        return f"{at}: {files.reason(error)}"
    return ""


def _free(path: str) -> int | None:
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


# -- telling ------------------------------------------------------------------------------------------------


def _write(found: Iterable[Finding], level: Level, shared: Shared) -> None:
    part = ""
    for finding in found:
        if finding.part != part:
            part = finding.part
            click.echo(f"{part}")
        mark = click.style("works  ", fg="green") if finding.works else click.style("missing", fg="red")
        if finding.name == "root" and not finding.works:
            mark = click.style("careful", fg="yellow")
        detail = f" ({_render.printable(finding.detail)})" if finding.detail else ""
        click.echo(f"  {mark}  {finding.name}{detail}: {finding.means}")
        if finding.fix:
            click.echo(f"           {_render.printable(finding.fix)}")
    if not shared.quiet:
        click.echo(f"isolation level: {level}")
