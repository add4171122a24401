"""``toolcrib init``: a new tool from a template that passes ``check``."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from toolcrib.catalog import files
from toolcrib.config import current_folder
from toolcrib.doors.cli import Shared, _render, examples, shared_options
from toolcrib.errors import SourceError, UsageError
from toolcrib.model import FOUND_FORMATS

_TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_NEXT = {
    "skill": "toolcrib check {name}",
    "manifest": "toolcrib check {name}",
    "capability": "toolcrib check {name}",
    "rye": "toolcrib check {name}",
    "executable": "toolcrib check --from executable={name}",
}


@click.command("init", epilog=examples("toolcrib init word-count", "toolcrib init --format skill notes"))
@click.argument("name")
@click.option(
    "--format", "format_", type=click.Choice(FOUND_FORMATS), default="manifest", show_default=True,
    help="How the tool is declared.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@shared_options
@click.pass_obj
def command(shared: Shared, name: str, format_: str, as_json: bool) -> None:
    """Start a new tool NAME in a folder of that name. Nothing is ever overwritten."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name for a tool",
            "use lower-case letters and digits, words joined by - or _, for example word-count",
        )
    folder = Path(current_folder()) / name
    if os.path.lexists(folder):
        raise UsageError(f"{name} exists already", "choose another name, or remove it first")
    try:
        written = _copy(_TEMPLATES / format_, folder, name)
    except OSError as error:
        raise SourceError(
            f"{name}: cannot be written: {files.reason(error)}", "go to a folder that you may write to"
        ) from None
    if as_json:
        _render.write_json([_render.shown_path(str(path)) for path in written])
        return
    for path in written:
        click.echo(_render.shown_path(str(path)))
    if not shared.quiet:
        click.echo(f"next: {_NEXT[format_].format(name=name)}", err=True)


def _copy(template: Path, folder: Path, name: str) -> list[Path]:
    """Write the template's files with the name in place of its stand-ins."""
    stand_ins = {"NAME": name, "SNAKE": name.replace("-", "_"), "KEBAB": name.replace("_", "-")}

    def named(text: str) -> str:
        for stand_in, value in stand_ins.items():
            text = text.replace(stand_in, value)
        return text

    written = []
    for source in sorted(template.rglob("*")):
        if source.is_dir() or source.suffix == ".pyc":
            continue
        target = folder / named(str(source.relative_to(template)))
        target.parent.mkdir(parents=True, exist_ok=True)
        text = named(source.read_text(encoding="utf-8"))
        target.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            target.chmod(0o755)
        written.append(target)
    return written
