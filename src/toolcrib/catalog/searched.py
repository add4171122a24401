"""Where programs and modules are looked for: without folders in which a tool could put one.

Attack: a folder of PATH inside the project that does not exist. A tool makes it, with a ``git`` in it, which
every later call runs. What exists there is held read-only (``places.py``). What does not exist, what a tool
made, and the project itself are left out, for us and for all that we start. So are relative folders of PATH.
What lies elsewhere is the user's, as it is without us.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from toolcrib.paths import NOTED, is_below, is_utf8

if TYPE_CHECKING:
    from toolcrib.catalog.appeared import Appearance

MODULE_PATHS: Final = ("PYTHONPATH", "NODE_PATH", "PERL5LIB", "RUBYLIB")
PROGRAMS_MAX: Final = 4096
_NOWHERE: Final = os.devnull
"""In place of a list without any folder: a shell takes an empty one for the current folder."""


class LeftOut(Struct, frozen=True, kw_only=True):
    """A folder in which nothing is looked for."""

    variable: str
    folder: str
    why: str
    record: Appearance | None = None
    """What of it a tool may have made, so that a person is asked."""


def cleaned(variable: str, value: str, roots: Sequence[str], state: str | None) -> tuple[str, list[LeftOut]]:
    """A list of folders without those in which a tool could put something, and what was left out. ``roots``:
    real folders in which tools may write."""
    kept: dict[str, None] = {}
    left_out: list[LeftOut] = []
    for folder in filter(None, value.split(os.pathsep)):
        record = None
        real = os.path.realpath(folder)
        if variable == "PATH" and not os.path.isabs(folder):
            why = "it is no absolute path"
        elif not is_below(folder, roots) and not is_below(real, roots):  # relative modules are below one
            kept[folder] = None
            continue
        elif real in roots:
            why = "tools may write in it"
        elif not os.path.isdir(real):
            why = "it does not exist, and a tool could make it"
        elif (record := _made_by_tools(folder, state)) is not None:
            why = f"{record.path} {record.how} while a tool could write there"
        else:  # Attack: a link in the project, which a tool replaces
            kept[real] = None
            continue
        left_out.append(LeftOut(variable=variable, folder=folder, why=why, record=record))
    return os.pathsep.join(kept) or (_NOWHERE if variable == "PATH" else ""), left_out


def _made_by_tools(folder: str, state: str | None) -> Appearance | None:
    """What of a folder, or of the programs in it, a tool may have made."""
    if state is None or not any(os.path.lexists(os.path.join(state, name)) for name in NOTED):
        return None
    # By name: few lists name a folder of the project.
    record_of = import_module("toolcrib.catalog.writes").LeftAlone(state)
    found: Appearance | None = next(filter(None, map(record_of, _inside(folder))), None)
    return found


def _inside(folder: str) -> Iterator[str]:
    yield folder
    with suppress(OSError), os.scandir(folder) as entries:
        yield from (entry.path for entry in islice(entries, PROGRAMS_MAX) if is_utf8(entry.path))
