"""Asking programs for their schemas: the one thing that is run while tools are loaded.

Discovery runs code, so it happens in places only that a person named, closed in, within a second, and with a
short answer. What the answer means is the format's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from toolcrib.model import End, Ending, Limits, Permit, ProbeOutcome, Profile
from toolcrib.sandbox import Cancel, Start
from toolcrib.sandbox.portable import Portable

PROBE_TIMEOUT_S: Final = 1.0
PROBE_OUTPUT_BYTES_MAX: Final = 8191
PROBES_AT_ONCE: Final = 8
"""Enough that sleepers do not add up, few enough that interpreters starting together keep their second."""

_PROBE_STDERR_BYTES_MAX: Final = 2000


def probe_schema(
    path: str,
    *,
    timeout_s: float = PROBE_TIMEOUT_S,
    env: Mapping[str, str],
    run: Callable[[Start], Ending] | None = None,
) -> tuple[bytes, ProbeOutcome]:
    """Run ``path --schema`` and return what it printed and how that went.

    It sees ``env`` and nothing else, so give it no credentials. It stands in the root folder while it
    answers: nothing in the folder we happen to be in, named by a relative entry of PATH for example, can
    change the answer. ``run`` starts it, else the portable level does.
    """
    program = os.path.abspath(path)
    start = Start(
        program=program,
        argv=(program, "--schema"),
        env=env,
        cwd="/",
        permit=Permit(
            profile=Profile.CLOSED,
            limits=Limits(timeout_s=timeout_s, stdout_bytes_max=PROBE_OUTPUT_BYTES_MAX),
        ),
        own=(os.path.dirname(program),),
        what="schema",
    )
    ending = run(start) if run is not None else Portable().run(start, Cancel())
    return ending.stdout, ProbeOutcome(
        exit_status=ending.exit_status,
        timed_out_s=timeout_s if ending.end is End.TIMED_OUT else None,
        too_long_bytes=PROBE_OUTPUT_BYTES_MAX if ending.end is End.TOO_LARGE else None,
        start_error=ending.reason if ending.end in (End.NOT_STARTED, End.UNAVAILABLE) else None,
        start_hint=ending.hint,
        stderr_tail=ending.stderr[-_PROBE_STDERR_BYTES_MAX:].decode("utf-8", "replace"),
    )


def probe_all(
    paths: Sequence[str],
    *,
    timeout_s: float = PROBE_TIMEOUT_S,
    env: Mapping[str, str],
    run: Callable[[Start], Ending] | None = None,
) -> list[tuple[bytes, ProbeOutcome]]:
    """Ask several programs at once; the answers stand in the order of ``paths``, whoever ends first."""
    if not paths:
        return []
    ask = partial(probe_schema, timeout_s=timeout_s, env=env, run=run)
    with ThreadPoolExecutor(min(len(paths), PROBES_AT_ONCE), "probe") as pool:
        return list(pool.map(ask, paths))
