"""Secrets out of how a run ended: everything in an ending that anybody will read. Pure.

``journal/redaction.py`` knows what is looked for and how; this file knows where in an ending it may stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from toolcrib.journal.redaction import Cleaning
from toolcrib.model import AudioBlock, Block, EmbeddedResource, Ending, ImageBlock, Run


def cleaned(ending: Ending, secrets: Mapping[str, str]) -> Ending:
    """An ending without the secrets that its call was handed. The same one, where there are none in it."""
    if not secrets:
        return ending
    cleaning = Cleaning(secrets)
    if not cleaning:
        return ending
    recording = cleaning.fresh(named=False)  # starts are for the record alone, which has a marker of its own
    stdout, stderr = cleaning(ending.stdout), cleaning(ending.stderr)
    # Attack: so much output that the limit cuts a secret in two, of which neither half is found.
    if ending.stdout_bytes > len(ending.stdout):
        stdout = cleaning.cut_end(stdout)
    if ending.stderr_bytes > len(ending.stderr):
        stderr = cleaning.cut_start(stderr)
    value, reason = cleaning.value(ending.value), cleaning.text(ending.reason)
    hint = None if ending.hint is None else cleaning.text(ending.hint)
    blocks = None if ending.blocks is None else tuple(_block(block, cleaning) for block in ending.blocks)
    notes = tuple(map(cleaning.text, ending.notes))
    runs = tuple(_run(run, recording) for run in ending.runs)
    if not cleaning.found and not recording.found:
        return ending
    return replace(
        ending,
        stdout=stdout,
        stderr=stderr,
        value=value,
        blocks=blocks,
        reason=reason,
        hint=hint,
        notes=(*notes, *cleaning.notes()),
        runs=runs,
    )


def _block(block: Block, cleaning: Cleaning) -> Block:
    told: dict[str, Any] = {}
    for name in block.__struct_fields__:
        value = getattr(block, name)
        is_blob = name == "data" and isinstance(block, (ImageBlock, AudioBlock, EmbeddedResource))
        if value is None:
            continue
        if is_blob:
            told[name] = cleaning.blob(value)
        else:
            told[name] = cleaning.text(value) if isinstance(value, str) else cleaning.value(value)
    return replace(block, **told)


def _run(run: Run, cleaning: Cleaning) -> Run:
    whole = "\n".join((*run.argv, run.cwd, run.note))  # one look for all: most starts tell nothing
    if cleaning.text(whole) == whole:
        return run
    return replace(
        run,
        argv=tuple(map(cleaning.text, run.argv)),
        cwd=cleaning.text(run.cwd),
        note=cleaning.text(run.note),
    )
