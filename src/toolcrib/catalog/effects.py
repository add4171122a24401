"""The effects that a configuration gives to tools whose own declarations cannot state one. Pure.

Which of its words a file may use is ``config.py``'s business; what follows from an effect is policy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec.structs import replace

from toolcrib.model import Effect, StatedEffect, Tool

_STRENGTH: Final = {effect: rank for rank, effect in enumerate(Effect)}


def applied(tool: Tool, stated: Sequence[StatedEffect]) -> Tool:
    """Return the tool with the effect that the configuration gives it.

    What a trusted file states replaces the tool's own effect. Of several patterns that match, the strongest
    effect counts. Attack: a project whose own file calls its destructive tool harmless. A file that is not
    trusted can only raise the effect.
    """
    matching = [each for each in stated if fnmatchcase(tool.key, each.pattern)] if stated else []
    if not matching:
        return tool
    declared = tool.declared_effect or tool.effect
    replacing = [each for each in matching if each.may_lower]
    chosen = max(replacing, key=_rank) if replacing else None
    for each in matching:
        if _STRENGTH[each.effect] > _STRENGTH[chosen.effect if chosen is not None else declared]:
            chosen = each
    if chosen is None:
        return tool
    return replace(
        tool,
        effect=chosen.effect,
        effect_from=_place(chosen),
        declared_effect=declared,
    )


def _place(stated: StatedEffect) -> str:
    """Return where it was stated. Without the folder: callers of a server see it, too."""
    file = stated.file.rpartition("/")[2] or "the configuration"
    line = f":{stated.line}" if stated.line is not None else ""
    return f'[tools."{stated.pattern}"] in {file}{line}'


def _rank(stated: StatedEffect) -> int:
    return _STRENGTH[stated.effect]
